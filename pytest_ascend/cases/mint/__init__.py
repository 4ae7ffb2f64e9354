"""MindSpore's mint: each of its functions called with the samples of the torch function it copies, which judges it.

``pairs`` says which torch function belongs to which, and what differs between their arguments; ``own`` holds samples
for those without any in the case list; ``choose`` lists the cases, and ``bridge`` makes the call. MindSpore's own CPU
kernels are no reference: about half of mint has none.
"""

from pytest_ascend.cases.mint.choose import pendings

__all__ = ["pendings"]
