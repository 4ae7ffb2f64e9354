"""Results of one run that was spread over several machines, put together: ``pytest-ascend report merge``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pytest_ascend.report import results_json

__all__ = ["Unmergeable", "check", "merged", "parsed"]


class Unmergeable(ValueError):
    """Results that aren't parts of one run; the message is one sentence."""


def parsed(text: str, name: str) -> dict[str, Any]:
    """A results file's content.

    Args:
        text: the file's.
        name: what it is called in an error.

    Raises:
        Unmergeable: it is no results file, or one of another version.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unmergeable(f"{name} is no results file of --ascend-json: {str(error)[:120]}") from None
    if not isinstance(content, dict) or "schema" not in content or not isinstance(content.get("results"), list):
        raise Unmergeable(f"{name} is no results file of --ascend-json: it has no schema and results")
    if content["schema"] != results_json.VERSION:
        raise Unmergeable(f"{name} has schema {content['schema']!r}, and this version merges {results_json.VERSION}")
    if not isinstance(content.get("environment"), dict):
        raise Unmergeable(f"{name} is no results file of --ascend-json: it has no environment")
    for record in content["results"]:
        if not isinstance(record, dict) or not isinstance(record.get("nodeid"), str) or "verdict" not in record:
            raise Unmergeable(f"{name} has a result without nodeid and verdict")
        if record["verdict"] not in results_json.VERDICTS:
            raise Unmergeable(f"{name} has a result with the unknown verdict {record['verdict']!r}")
    return content


def check(parts: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """What a person should know before believing the whole, one line each.

    Raises ``Unmergeable`` where two parts hold the same test, or are parts of different runs.
    """
    shards = {name: part["environment"].get("shard") for name, part in parts.items()}
    owners: dict[str, str] = {}
    for name, part in parts.items():
        for nodeid in {record["nodeid"] for record in part["results"]}:
            if (other := owners.setdefault(nodeid, name)) != name:
                raise Unmergeable(f"{nodeid} is in {other} and in {name}: a test belongs to one part of a run")
    known = {name: shard for name, shard in shards.items() if isinstance(shard, dict)}
    digests = {(shard.get("parts"), shard.get("collected"), shard.get("digest")) for shard in known.values()}
    if len(digests) > 1:
        raise Unmergeable(
            "the parts were dealt from different collections, so that tests may be missing or double: "
            + ", ".join(f"{name} from {s.get('collected')} tests in {s.get('parts')}" for name, s in known.items())
        )
    if known:
        count = int(next(iter(known.values())).get("parts") or 0)
        there = {shard.get("part") for shard in known.values()}
        if missing := [part for part in range(1, count + 1) if part not in there]:
            raise Unmergeable(f"part {', '.join(map(str, missing))} of {count} is missing: give its file too")
    yield from _differences({name: part["environment"] for name, part in parts.items()})


def merged(parts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """One results file's content: all results in the order of their tests' names, environments that agree as one.

    Where environments differ, each part's own is kept below ``parts``.
    """
    environments = [part["environment"] for part in parts.values()]
    common = {
        name: value
        for name, value in (environments[0] if environments else {}).items()
        if name != "shard" and all(other.get(name) == value for other in environments)
    }
    shards = [one["shard"] for one in environments if isinstance(one.get("shard"), dict)]
    environment = {**common, "parts": [{"file": name, **part["environment"]} for name, part in parts.items()]}
    if shards:
        environment["merged"] = {key: shards[0].get(key) for key in ("parts", "collected", "digest")}
    results: list[Mapping[str, Any]] = [record for part in parts.values() for record in part["results"]]
    results.sort(key=lambda record: record["nodeid"])  # stable: a test's own results stay in their order
    return results_json.document(results, environment)


def _differences(environments: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    flat = {name: dict(_flat(environment)) for name, environment in environments.items()}
    for key in sorted({key for one in flat.values() for key in one}):
        values = {name: one.get(key) for name, one in flat.items()}
        if len({json.dumps(value, sort_keys=True) for value in values.values()}) > 1:
            yield f"{key} differs: " + ", ".join(f"{name} {value}" for name, value in values.items())


def _flat(value: Mapping[str, Any], path: Sequence[str] = ()) -> Iterator[tuple[str, Any]]:
    for name, one in value.items():
        if name in ("shard", "parts", "merged") and not path:
            continue
        if isinstance(one, Mapping):
            yield from _flat(one, (*path, str(name)))
        else:
            yield ".".join((*path, str(name))), one
