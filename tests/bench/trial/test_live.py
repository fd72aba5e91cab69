import json
from pathlib import Path

import attrs
import pytest

from lmpool.bench.trial import live
from lmpool.bench.trial.spec import ARMS, TrialSpec
from tests.bench.trial.made import SPEC


def _knobs(spec: TrialSpec) -> dict[str, object]:
    return live.engine_knobs(spec, spec.model, 12)


def test_a_replica_is_the_same_in_all_arms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "cores", lambda: 8)
    same = ("threads", "kv_blocks", "block_size", "step_tokens", "sequences", "dtype", "waiting_requests")
    found = [_knobs(attrs.evolve(SPEC, arm=arm.name, threads=None)) for arm in ARMS]
    assert len({tuple(knobs[name] for name in same) for knobs in found}) == 1
    assert found[0]["threads"] == 4
    assert _knobs(attrs.evolve(SPEC, threads=3))["threads"] == 3


def test_copies_are_priced_by_a_calibration_only_where_blocks_are_placed() -> None:
    given = [_knobs(attrs.evolve(SPEC, arm=arm.name, calibration="file")) for arm in ARMS]
    assert [(knobs["placement"], knobs["calibration"]) for knobs in given] == [
        ("off", None),
        ("off", None),
        ("off", None),
        ("auto", "file"),
        ("auto", "file"),
    ]


def test_prompts_have_ids_that_the_model_knows(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 300}))
    assert live.vocabulary(str(tmp_path)) == 300
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 300_000}))
    assert live.vocabulary(str(tmp_path)) == live.vocabulary(None) == live.vocabulary("owner/name") == live.VOCABULARY
