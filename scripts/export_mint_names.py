"""Write pytest_ascend/cases/data/mint_names.json: the public names of mindspore.mint with their parameters.

Run it with the MindSpore that `make test-mint` pins: ``.venv-mint/bin/python scripts/export_mint_names.py``.
"""

import json
from pathlib import Path

from pytest_ascend.targets.mindspore import server

HOMES = ("mint", "mint.nn.functional", "mint.linalg", "mint.special", "mint.nn", "mint.optim", "mint.distributed")
OUT = Path(__file__).parent.parent / "pytest_ascend" / "cases" / "data" / "mint_names.json"


def main() -> None:
    rows = {}
    for home in HOMES:
        found = server("CPU").ask({"do": "signatures", "module": f"mindspore.{home}"})
        for name, about in sorted(found.items()):
            if about["is_class"] and home in ("mint", "mint.nn.functional", "mint.linalg", "mint.special"):
                continue
            if not about["listed"] and home in ("mint.nn", "mint.optim", "mint.distributed"):
                continue
            rows[f"{home}.{name}"] = {"parameters": about["names"], **({} if about["listed"] else {"unlisted": 1})}
    document = {"mindspore": server("CPU").hello["mindspore"], "names": rows}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in document["names"].items())
    OUT.write_text(f'{{"mindspore": "{document["mindspore"]}", "names": {{\n{lines}\n}}}}\n')
    print(f"{len(rows)} names in {OUT}")


if __name__ == "__main__":
    main()
