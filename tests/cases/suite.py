"""The case suite: public reports, put through contracts, the segment and the diagnosis as an engine's process would.

``python tests/cases/suite.py`` prints the table. A case is data: what the sides claim, in which order, and what they
claim it from; the true cause is only compared with what comes out. A size may be the name of a formula: it is then
computed from the inputs, as a probe does.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml

from ullage.host.process import process
from ullage.recording.contracts import Contract
from ullage.segment import reader
from ullage_sidecar.diagnosis.joined import joined
from ullage_sidecar.formulas.catalogue import catalogue

HERE = Path(__file__).parent
WHEN = {"start": "before traffic", "launch": "before the launch", "step": "same step", "after": "after"}
ROLES = ("is", "provides", "requires")


@dataclass
class Outcome:
    """What became of a case.

    Attributes:
        seen_in: ``vllm`` if vLLM's own objects carry what is claimed; ``owner`` if the buffer's owner has to claim it.
        assumed: Whether an input is not in the report.
        when: Empty if nothing was reported.
        rank: Of the true cause among the rivals, 1 for the first; 0 if it is not among them.
        tie: Whether several rivals are within a factor of two of the first.
        named_truly: Whether each of these is the true cause, in words of another rule perhaps.
    """

    id: str
    seen_in: str
    assumed: bool
    when: str = ""
    rank: int = 0
    tie: bool = False
    named_truly: bool = False
    rivals: tuple[str, ...] = ()
    text: str = ""

    @property
    def first(self):
        """Whether nothing but the true cause was named first."""
        return self.named_truly

    @property
    def among_three(self):
        """Whether the true cause is one of the first three."""
        return 1 <= self.rank <= 3


def load(*names):
    """Return the cases of the files, in their order."""
    return [case for name in names for case in yaml.safe_load((HERE / f"{name}.yaml").read_text())]


def reports():
    """Return the cases that are reports of faults."""
    return [case for case in _all() if not case.get("healthy")]


def healthy():
    """Return the negative controls: healthy configurations, and what was reported and turned out to be none."""
    return [case for case in _all() if case.get("healthy")]


def _all():
    return load(*sorted(path.stem for path in HERE.glob("*.yaml")))


def play(case):
    """Put a case through; return its Outcome."""
    outcome = Outcome(case["id"], case.get("seen in", "vllm"), bool(case.get("assumed")))
    described = case["contract"]
    contract = Contract(
        described["name"],
        dims=described.get("dims", ["size"]),
        relation=described.get("relation", "=="),
        unit=described.get("unit", ""),
    )
    try:
        for step in case["steps"]:
            found = _take(contract, step)
            if found:
                outcome.when = WHEN[step["at"]]
                _judge(outcome, case, found)
                break
    finally:
        contract.close()
    return outcome


def _take(contract, step):
    """Do what a probe does in this step; return the two sides that do not fit, if there are any."""
    if "compare" in step:
        ours, theirs = step["compare"]
        (_, have), (_, need) = _size(ours), _size(theirs)
        fits = contract.compare(
            have,
            need,
            inputs=lambda: (ours.get("inputs", {}), theirs.get("inputs", {})),
            sources=(ours["source"], theirs["source"]),
        )
        return None if fits else _seen(contract)
    role, size = _size(step)
    contract.claim(step["source"], size, role=role, inputs=step.get("inputs", {}), dtype=step.get("dtype", ""))
    return _seen(contract)


def _size(side):
    """Return the role and the size of a side; a formula computes it from the side's inputs."""
    role = next(role for role in ROLES if role in side)
    size = side[role]
    if isinstance(size, str):
        (formula,) = [one for one in catalogue().formulas if one.id == size]
        size = formula.size(side["inputs"])
        assert size is not None, f"an input of {side[role]} is missing"
    return role, size


def _seen(contract):
    """Return what a reader of the segment sees of a contract, and two sides that do not fit."""
    snapshot = reader.read(process.session.open().path)
    (seen,) = [one for one in joined([("", snapshot.claims)]) if one.name == contract.name]
    return next(((seen, sides) for sides in (*seen.violations, *seen.disagreements)), None)


def _judge(outcome, case, found):
    contract, sides = found
    finding = contract.explained(sides, without=case.get("class", ""))
    outcome.rivals = tuple(cause.rule for cause in finding.rivals)
    outcome.tie = len(finding.tied) > 1
    outcome.text = finding.text
    truths = case.get("truth", [])
    outcome.named_truly = all(cause.rule in truths for cause in finding.tied)
    outcome.rank = next((place for place, rule in enumerate(outcome.rivals, start=1) if rule in truths), 0)


def totals(outcomes):
    """Count what was reached."""
    when = Counter(outcome.when for outcome in outcomes if outcome.when)
    return {
        "cases": len(outcomes),
        "reported": sum(when.values()),
        **{words: when[words] for words in WHEN.values()},
        "true cause first": sum(outcome.first for outcome in outcomes),
        "among three": sum(outcome.among_three for outcome in outcomes),
    }


def groups(outcomes):
    """Return the totals of all cases, and of those for which less had to be supposed."""
    return {
        "all": totals(outcomes),
        "vLLM's objects carry it": totals([one for one in outcomes if one.seen_in == "vllm"]),
        "the buffer's owner claims it": totals([one for one in outcomes if one.seen_in == "owner"]),
        "every input from the report": totals([one for one in outcomes if not one.assumed]),
    }


def summary(outcomes):
    """Yield the lines of a table of totals, as the README has it."""
    counted = groups(outcomes)
    columns = list(counted["all"])
    yield f"| | {' | '.join(columns)} |"
    yield "|---" * (len(columns) + 1) + "|"
    for name, counts in counted.items():
        shares = [f"{counts[column]} ({counts[column] / counts['cases']:.0%})" for column in columns[1:]]
        yield f"| {name} | {counts['cases']} | {' | '.join(shares)} |"


def table(outcomes):
    """Yield the lines of the table."""
    yield f"{'report':46} {'seen in':8} {'reported':18} {'cause':12} first rivals"
    for one in outcomes:
        cause = "first" if one.first else f"{one.rank}{' (tie)' if one.tie else ''}" if one.rank else "-"
        yield f"{one.id:46} {one.seen_in:8} {one.when or 'no':18} {cause:12} {', '.join(one.rivals[:3])}"


def main():
    """Print the table and the totals, or all of it as JSON."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as directory:
        os.environ |= {"ULLAGE_DIR": directory, "ULLAGE_STRICT": "1"}
        logging.getLogger("ullage").setLevel(logging.ERROR)  # each disagreement is in the table
        told, quiet = [play(case) for case in reports()], [play(case) for case in healthy()]
        if "--json" in sys.argv:
            print(json.dumps({"reports": [asdict(one) for one in told], "healthy": [asdict(one) for one in quiet]}))
            return
        print("\n".join(table(told)))
        print("", *summary(told), "", sep="\n")
        print(f"{len(quiet)} healthy configurations, {sum(bool(one.when) for one in quiet)} of them reported")


if __name__ == "__main__":
    main()
