"""Networks, and places for them, that hypothesis draws."""

from hypothesis import strategies as st

from ssmpi.model.field_operators import FactorizationMachine, FieldVectors, FirstOrder, Sum
from ssmpi.model.network import (
    DENSE,
    ROWS,
    WEIGHTS,
    Activation,
    Concat,
    DotInteraction,
    Dropout,
    Gate,
    Inputs,
    LayerNorm,
    Linear,
    Network,
    Product,
    Slice,
)
from ssmpi.model.operators import ACTIVATIONS
from ssmpi.model.places import places_of
from ssmpi.model.top_k import with_top_k


@st.composite
def networks(draw):
    """Any list of operators that fits: each reads values made before it; what is left over is joined at the end."""
    inputs = Inputs(draw(st.integers(1, 6)), draw(st.integers(1, 4)), draw(st.integers(1, 5)))
    unread = list(draw(st.sampled_from([(ROWS,), (WEIGHTS,), (ROWS, WEIGHTS)])))
    widths, operators = {name: inputs.widths()[name] for name in (DENSE, *unread)}, []

    def add(operator):
        operators.append(operator)
        widths[operator.name] = operator.form(*(widths[name] for name in operator.inputs)).width
        unread[:] = [name for name in unread if name not in operator.inputs] + [operator.name]

    for number in range(draw(st.integers(0, 6))):
        name, source = f"o{number}", draw(st.sampled_from(sorted(widths)))
        kinds = ["linear", "pairs", "concat", "gate", "sum", "first order", "vectors", "machine", "slice"]
        kinds += ["product", "norm", "activation", "dropout"]
        match draw(st.sampled_from(kinds)):
            case "product":
                fitting = [value for value in widths if widths[value] == widths[source]]
                add(Product(name, tuple(draw(st.lists(st.sampled_from(fitting), min_size=2, max_size=4)))))
            case "norm":
                dims = [dim for dim in range(3, widths[source] + 1) if widths[source] % dim == 0]
                if dims:  # two values would become 1 and -1, whatever they are
                    add(LayerNorm(name, (source,), draw(st.sampled_from([0, *dims]))))
            case "activation":
                add(Activation(name, (source,), draw(st.sampled_from(ACTIVATIONS[1:]))))
            case "dropout":
                add(Dropout(name, (source,), draw(st.sampled_from([0.0, 0.3, 0.9]))))
            case "linear":
                activation = draw(st.sampled_from(ACTIVATIONS))
                add(Linear(name, (source,), draw(st.integers(1, 40)), activation, draw(st.booleans())))
            case "pairs":
                fitting = [value for value in widths if widths[value] == inputs.dim and value != ROWS]
                if fitting and ROWS in widths:
                    add(DotInteraction(name, (draw(st.sampled_from(fitting)), ROWS), inputs.tables))
            case "concat":
                add(Concat(name, tuple(draw(st.lists(st.sampled_from(sorted(widths)), min_size=1, max_size=4)))))
            case "gate":
                fitting = [value for value in widths if widths[value] == widths[source]]
                add(Gate(name, (source, draw(st.sampled_from(fitting)), draw(st.sampled_from(fitting)))))
            case "slice":
                first = draw(st.integers(0, widths[source] - 1))
                add(Slice(name, (source,), first, draw(st.integers(1, widths[source] - first))))
            case "sum":
                fitting = [value for value in widths if widths[value] == widths[source]]
                add(Sum(name, tuple(draw(st.lists(st.sampled_from(fitting), min_size=1, max_size=4)))))
            case "first order":
                add(FirstOrder(name, (source, draw(st.sampled_from(sorted(widths))))[: draw(st.integers(1, 2))]))
            case "vectors":
                add(FieldVectors(name, (source,), draw(st.integers(1, 4))))
            case "machine":
                dims = [dim for dim in range(1, widths[source] + 1) if widths[source] % dim == 0]
                add(FactorizationMachine(name, (source,), draw(st.sampled_from(dims))))
    add(Concat("all", tuple(unread)))
    add(Linear("logit", ("all",), 1))
    return Network(tuple(operators), inputs)


@st.composite
def tagged(draw, rounded=False, shares=(0.0, 0.5, 0.9)):
    """A network, a group's size and rules that fit them, an operator each; a ``TopK`` of any of the ``shares`` behind
    some operators.
    """
    network, group, rules = draw(networks()), draw(st.integers(1, 4)), []
    behind = [operator.name for operator in network.operators[:-1] if shares and draw(st.booleans())]
    network = with_top_k(network, [f"{name}: {draw(st.sampled_from(shares))}" for name in behind])
    for operator in network.operators:
        places = ["home", *map(str, range(group))]
        rounding = " bf16" if rounded and draw(st.booleans()) else ""
        rules.append(f"{operator.name}: {draw(st.sampled_from(places))}{rounding}")
    return network, places_of(rules, network, group)
