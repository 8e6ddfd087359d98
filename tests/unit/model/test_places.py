"""Where members of a group compute a network's operators: rules, plans, and what they cost."""

import re
from itertools import combinations

import pytest
from drawn_networks import networks
from hypothesis import given
from hypothesis import strategies as st

from ssmpi.model.member_program import bytes_of_step, owned_names
from ssmpi.model.network import Inputs, floats_in
from ssmpi.model.networks.zoo import network_of
from ssmpi.model.options import DeepFMOptions, ModelOptions
from ssmpi.model.parameters import OwnedParameters
from ssmpi.model.places import PLANS, AtHome, AtMember, _narrowest, places_of
from ssmpi.runtime.errors import SettingsError

KAGGLE = Inputs(dense=13, tables=26, dim=16)
DLRM = network_of(ModelOptions(), KAGGLE)


def places_by_plan(plan, network=DLRM, group=2):
    return places_of(PLANS[plan](network, group), network, group)


def test_the_first_rule_that_matches_decides():
    places = places_of(["bottom.*: home", "top.0: 0", "top.*: 1 bf16"], DLRM, 2)
    kinds = {name: type(place) for name, place in places.of.items()}
    assert {kinds[name] for name in kinds if name.startswith("bottom")} == {AtHome}
    assert kinds["pairs"] is AtHome  # which no rule matches
    assert places.of["top.0"] == AtMember(0)
    assert places.of["top.2"] == places.of["top.4"] == AtMember(1)
    assert places.rounded == {"top.2", "top.4"}


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        (["top.*: middle"], "rule 'top.*: middle': 'middle' is not a place: write one of home, a member's number"),
        (["top.*: 1 fp16"], "rule 'top.*: 1 fp16' is not of the form 'PATTERN: PLACE' or 'PATTERN: PLACE bf16'"),
        (["top.*"], "rule 'top.*' is not of the form"),
        ([": home"], "rule ': home' is not of the form"),
        (["top.*:"], "rule 'top.*:': '' is not a place"),
        (["tip.*: 1", "*: home"], "rule 'tip.*: 1' matches no operator; did you mean 'top."),
        (["botom.*: 1"], "rule 'botom.*: 1' matches no operator; did you mean 'bottom."),
        (["*: home", "top.0: 1"], "rule 'top.0: 1': rules before it match all its operators: remove it, or put it fir"),
        (["*: 2"], "rule '*: 2': operator 'bottom.0': topology.group = 2 has members 0 to 1: name one of them"),
        (["top.*: 1"], "operator 'bottom.0' has parameters, and none of the rules matches it: add 'bottom.0: home'"),
    ],
)  # fmt: skip
def test_rules_that_cannot_be_are_refused(rules, words):
    with pytest.raises(SettingsError, match=re.escape(words)):
        places_of(rules, DLRM, 2)


def test_kaggles_dlrm_costs_what_the_arithmetic_says():
    """Both directions, a batch of a lane, the mean of both homes, with its size and the rate's factor: 475,985
    parameters, bottom and top 33 % and 67 %.
    """
    assert DLRM.parameters == 475_985
    of = {
        plan: [bytes_of_step(DLRM, places_by_plan(plan), examples, (0, 1)) for examples in (0, 1000, 2000)]
        for plan in PLANS
    }
    assert of["data"] == [4 * 475_985 + 16] * 3
    assert of["stages"] == [1562 * examples + 16 for examples in (0, 1000, 2000)]
    bottom = sum(form.products for name, form in DLRM.forms.items() if name.startswith("bottom"))
    top = sum(form.products for name, form in DLRM.forms.items() if name.startswith("top"))
    assert bottom / (bottom + top) == pytest.approx(0.33, abs=0.005)
    assert {name: place.number for name, place in places_by_plan("stages").of.items() if name != "pairs"} == {
        name: int(name.startswith("top")) for name in DLRM.forms if name != "pairs"
    }


@pytest.mark.parametrize("group", [2, 3, 4])
def test_parameters_of_homes_are_dealt_evenly(group):
    """As far as whole parameters can be, of which the largest is more than a third of all."""
    owned = owned_names(DLRM, places_by_plan("data", group=group))
    loads = [floats_in(OwnedParameters(DLRM, names).layout) for names in owned]
    assert sum(loads) == DLRM.parameters
    assert max(loads) <= max(1.11 * DLRM.parameters / group, 512 * 367)


@given(networks(), st.integers(2, 4), st.sampled_from(sorted(PLANS)))
def test_every_plan_fits_every_network(network, group, plan):
    """Or says that it does not; every rule of it is used, since one that is not is refused."""
    if plan == "stages" and sum(bool(form.parameters) for form in network.forms.values()) < group:
        with pytest.raises(SettingsError, match=f"too few for topology.group = {group}: lower it, or take the plan"):
            places_by_plan(plan, network, group)
        return
    places = places_by_plan(plan, network, group)
    numbers = [place.number for place in places.of.values() if isinstance(place, AtMember)]
    assert numbers == sorted(numbers)
    if plan == "stages":
        assert set(numbers) == set(range(group))


@pytest.mark.parametrize(("second", "cut"), [(9, 2), (15, 1)])
def test_a_narrower_cut_may_cost_a_tenth_of_the_balance_and_no_more(second, cut):
    """The first stage has 100 products and hands on 20 floats, or ``second`` more and hands on one."""
    products, crossing = [100, second, 100 - second], [20, 1, 0]
    assert _narrowest(products, crossing, 2) == (cut,)


@pytest.mark.parametrize("name", ["dlrm", "dcn_v2", "deepfm"])
@pytest.mark.parametrize("group", [2, 3])
def test_stages_are_the_narrowest_of_the_balanced_cuts(name, group):
    """Against every possible cut of the network's layers, one by one."""
    network = network_of(ModelOptions(name=name, deepfm=DeepFMOptions((400, 400))), KAGGLE)
    chosen = places_by_plan("stages", network, group)
    layers = [name for name, place in chosen.of.items() if network.forms[name].parameters]

    def busiest(places):
        loads = [0] * group
        for name, place in places.of.items():
            if isinstance(place, AtMember):
                loads[place.number] += network.forms[name].products
        return max(loads)

    def moved(starts):
        """The same operators, cut before the layers ``starts``."""
        rules, member = [], 0
        for name, place in chosen.of.items():
            member += name in [layers[start] for start in starts]
            rules.append(f"{name}: {member if isinstance(place, AtMember) else 'home'}")
        return places_of(rules, network, group)

    def crossing(places):
        found, operators = 0, network.operators
        for number, operator in enumerate(operators[:-1]):
            following = next((o for o in operators[number + 1 :] if isinstance(places.of[o.name], AtMember)), None)
            here = places.of[operator.name]
            if following and isinstance(here, AtMember) and places.of[following.name] != here:
                read = {value for later in operators[number + 1 :] for value in later.inputs}
                found += sum(network.widths[o.name] for o in operators[: number + 1] if o.name in read)
        return found

    every = [moved(starts) for starts in combinations(range(1, len(layers)), group - 1)]
    limit = 1.1 * min(map(busiest, every))
    assert busiest(chosen) <= limit
    assert crossing(chosen) == min(crossing(places) for places in every if busiest(places) <= limit)
