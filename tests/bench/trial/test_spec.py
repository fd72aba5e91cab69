import json

import attrs
import pytest

from lmpool.bench.load.counters import CacheCondition
from lmpool.bench.trial.spec import ARMS, CONVERTER, SpecError, TrialSpec, Venue, arm_named, read_spec, spec_text
from lmpool.core.route import POLICIES
from tests.bench.trial.made import SPEC

FULL = attrs.evolve(
    SPEC, venue=Venue.SIMULATOR, requests=None, in_flight=7, model="tiny", cache=CacheCondition.PRIMED, e2e_max_s=None
)


@pytest.mark.parametrize("spec", [SPEC, FULL])
def test_a_spec_is_read_back_as_it_was_written(spec: TrialSpec) -> None:
    read = read_spec(spec_text(spec))
    assert read == spec
    assert read.fingerprint == spec.fingerprint


def test_the_fingerprint_is_of_values_and_not_of_their_order() -> None:
    fields = CONVERTER.unstructure(SPEC)
    turned = json.dumps(dict(reversed(fields.items())))
    assert read_spec(turned).fingerprint == SPEC.fingerprint
    prints = {attrs.evolve(SPEC, seed=seed, arm=arm).fingerprint for seed in (0, 1) for arm in ("full", "routing")}
    assert len(prints) == 4


def test_what_is_unknown_or_missing_or_of_another_type_is_refused() -> None:
    fields = CONVERTER.unstructure(SPEC)
    missing = {name: value for name, value in fields.items() if name != "seed"}
    for wrong in ({**fields, "sed": 1}, missing, {**fields, "seed": "1"}, {**fields, "replicas": True}, [fields]):
        with pytest.raises(SpecError, match="no spec of a trial"):
            read_spec(json.dumps(wrong))
    with pytest.raises(SpecError, match="no JSON"):
        read_spec("{")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("arm", "best"),
        ("requests", 0),
        ("in_flight", 0),
        ("turns", 0),
        ("replicas", 10_000),
        ("kv_blocks", 0),
        ("block_size", 24),
        ("rate", 0.0),
        ("scale", float("inf")),
        ("pauses", -1.0),
        ("e2e_max_s", 0.0),
        ("sequences", 1_000),
    ],
)
def test_what_no_trial_can_be_is_refused_by_its_name(name: str, value: object) -> None:
    fields = CONVERTER.unstructure(SPEC) | {name: CONVERTER.unstructure(value)}
    with pytest.raises(SpecError, match=name):
        read_spec(json.dumps(fields))


def test_every_policy_is_an_arm_and_the_single_one_has_one_replica() -> None:
    for policy in POLICIES:
        assert arm_named(policy).policy == policy
    assert [attrs.evolve(SPEC, arm=arm.name).placed.replicas for arm in ARMS] == [1, 2, 2, 2, 2]
