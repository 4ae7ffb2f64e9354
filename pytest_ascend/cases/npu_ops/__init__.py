"""What torch_npu's own operators compute, composed of torch's operators on the CPU.

Each function takes the operator's arguments under the names and with the defaults of its schema, and works in the
dtypes it is given: float64 for the golden; 16-bit inputs are computed in float32 and rounded once at the end, as the
fused kernels do. Shapes and meaning are those of the public documentation of torch_npu's operators (hiascend.com,
Ascend Extension for PyTorch, API list); each docstring gives the formula. They are written apart from the emulated
operators, which they judge in the tests.
"""
