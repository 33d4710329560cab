"""The masks of a policy: exactly those values from which a legal config can be reached."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.device import H200
from cupygemm.legality import RULES, illegal_reason
from cupygemm.problem import Problem
from cupygemm.search.spaces.choices import Choices
from cupygemm.search.spaces.space import FULL_KNOBS, Knob, SearchSpace

PROBLEM = Problem(2048, 2048, 4096)
SPEC = KernelSpec.of(PROBLEM)
FEW = {
    "block_m": (64, 256),
    "block_n": (64, 256),
    "block_k": (128,),
    "stages": (2, 4, 8),
    "consumers": (1, 2),
    "cluster_m": (1, 2),
    "cluster_n": (1,),
    "raster_along_n": (True,),
    "group": (1,),
    "producer_registers": (40,),
    "wait_depth": (1,),
    "store_stages": (0, 2),
    "cluster_k": (1,),
    "l2_promotion": (256,),
    "keep_a": (0,),
    "keep_b": (0,),
    "keep_out": (0,),
    "prefetch": (0,),
    "cp_async_stages": (0,),
}
SMALL = tuple(Knob(knob.name, FEW.get(knob.name, knob.values), knob.ordered) for knob in FULL_KNOBS)


def searched() -> SearchSpace:
    """Legality as a predicate in parts: no members are known."""
    rules = [lambda config, rule=rule: next(rule(config, SPEC, H200), None) is None for rule in RULES]
    return SearchSpace(SMALL, lambda config: illegal_reason(config, SPEC, H200) is None, rules=rules)


def known() -> SearchSpace:
    return SearchSpace.of_members(SMALL, list(searched().enumerate()))


@pytest.fixture(params=[searched, known])
def choices(request) -> Choices:
    return Choices(request.param())


MEMBERS = [Choices(known()).encode(config) for config in searched().enumerate()]


def prefixes(choices: Choices):
    for length in range(len(choices.sizes)):
        yield from itertools.product(*(range(size) for size in choices.sizes[:length]))


def test_knobs_without_a_choice_do_not_appear(choices):
    assert choices.sizes == (2, 2, 3, 2, 2, 2, 2, 2, 2)


def test_configs_survive_encoding(choices):
    for config in itertools.islice(searched().enumerate(), 0, None, 7):
        assert choices.decode(choices.encode(config)) == config


def test_a_value_is_legal_if_and_only_if_a_member_begins_with_it(choices):
    begun = {member[:length] for member in MEMBERS for length in range(len(member) + 1)}
    for prefix in prefixes(choices):
        size = choices.sizes[len(prefix)]
        assert choices.legal(prefix).tolist()[:size] == [(*prefix, i) in begun for i in range(size)]
        assert not choices.legal(prefix)[size:].any()


def test_what_is_taken_closes_and_with_the_last_of_its_kind_the_way_to_it(choices):
    rng = np.random.default_rng(0)
    left = set(MEMBERS)
    while left:
        prefix: tuple[int, ...] = ()
        while len(prefix) < len(choices.sizes):
            prefix = (*prefix, int(rng.choice(np.flatnonzero(choices.open(prefix)))))
        assert prefix in left, "drawn again, or illegal"
        left.remove(prefix)
        choices.take(prefix)
        choices.take(prefix)
    assert not choices.open(()).any()
    assert choices.legal(()).any()


def test_rules_alone_say_what_legality_says():
    space = searched()
    for config in itertools.islice(space.product(), 0, None, 11):
        assert all(rule(config) for rule in space.rules) == space.is_legal(config)


def test_a_space_of_one_config_is_one_choice():
    member = next(searched().enumerate())
    knobs = [Knob(knob.name, (getattr(member, knob.name),), knob.ordered) for knob in SMALL]
    choices = Choices(SearchSpace.of_members(knobs, [member]))
    assert choices.sizes == (1,)
    assert choices.decode((0,)) == member
    assert isinstance(choices.decode((0,)), KernelConfig)


def test_the_full_space_is_answered_without_walking_it():
    choices, rng = Choices(SearchSpace.for_problem(PROBLEM, H200)), np.random.default_rng(1)
    for _ in range(8):
        prefix: tuple[int, ...] = ()
        while len(prefix) < len(choices.sizes):
            prefix = (*prefix, int(rng.choice(np.flatnonzero(choices.open(prefix)))))
        assert illegal_reason(choices.decode(prefix), SPEC, H200) is None
