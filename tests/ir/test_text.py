"""The text form: printing and parsing are exact inverses; bad text always gives a ParseError."""

import re

import pytest
from example_counts import examples
from graph_makers import MAKERS
from graph_makers_array import legal_ops
from graphs import graphs
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.ir.analysis.verify import verify
from weft.ir.dtypes import float32
from weft.ir.errors import ParseError
from weft.ir.graph import STAGES, Block, Graph, Operation, Value
from weft.ir.locations import Location
from weft.ir.ops import OPS
from weft.ir.program import Part, Program
from weft.ir.text.parser import parse_graph, parse_program
from weft.ir.text.printer import print_block, print_graph, print_program
from weft.ir.types import TensorType

SAMPLE = """\
// what people write by hand
graph @step(%x: f32[2,b], %"y[0]": i64[2,3]) -> (f32[2,b], token) stage=fused {
  %w = variable() {shape=[2, b*2+1, ?], dtype=f32, name="W"} : ref<f32[2,b*2+1,?]>
  %r = read(%w) : f32[2,b*2+1,?] loc("m.py":3:5, "n.py":4:0)
  %c = constant() {value=f32[2] [1.5, -0.0]} : f32[2]
  %f = fused(%x, %x) : f32[2,b] {
    ^(%p: f32[2,b], %q: f32[2,b])
    %s = add(%p, %q) : f32[2,b]  // a comment
    yield %s
  }
  %m = sum(%"y[0]") {axes=[1]} : i64[2]
  %t = assign(%w, %r) after(%f) : token
  return %f, %t
}
"""


# ---------------------------------------------------------------------------- round trips


@given(graphs(symbolic=True))
def test_parse_inverts_print(graph: Graph) -> None:
    verify(graph)
    text = print_graph(graph)
    parsed = parse_graph(text)
    assert parsed == graph
    assert print_graph(parsed) == text
    verify(parsed)


@given(graphs(symbolic=True, located=False))
def test_text_without_locations(graph: Graph) -> None:
    assert "loc(" not in print_graph(graph)
    assert parse_graph(print_graph(graph)) == graph


@given(graphs())
@settings(max_examples=20)
def test_locations_can_be_left_out(graph: Graph) -> None:
    parsed = parse_graph(print_graph(graph, locations=False))
    assert not any(op.locations for op in parsed.walk())
    assert print_graph(parsed) == print_graph(graph, locations=False)


def test_every_op_has_a_maker() -> None:
    """Random graphs cover the whole op table: a new op needs a row in graph_makers.MAKERS."""
    assert set(MAKERS) == set(OPS) - {"custom_rule"}  # a Python function, in gradients only


@pytest.mark.share(6)
@pytest.mark.parametrize("op", [name for name in OPS if name in MAKERS])
def test_every_op_is_drawn(op: str) -> None:
    stage = next(s for s in STAGES if op in legal_ops(s))
    seen: list[bool] = []

    def check(graph: Graph) -> None:
        assert parse_graph(print_graph(graph)) == graph
        seen.append(any(o.name == op for o in graph.ops))

    for most in (2, 20):  # few need more
        if not any(seen):
            few = settings(max_examples=most, database=None)
            few(given(graphs(stage=stage, ops=[op]))(check))()
    assert any(seen)


def test_text_is_as_documented() -> None:
    assert print_graph(parse_graph(SAMPLE)) == (
        'graph @step(%x: f32[2,b], %"y[0]": i64[2,3]) -> (f32[2,b], token) stage=fused {\n'
        '  %0 = variable() {name="W", dtype=f32, shape=[2, 2*b+1, ?]} : ref<f32[2,2*b+1,?]>\n'
        '  %1 = read(%0) : f32[2,2*b+1,?] loc("m.py":3:5, "n.py":4:0)\n'
        "  %2 = constant() {value=f32[2] [1.5, -0.0]} : f32[2]\n"
        '  %3 = fused(%x, %x) {kind="loop"} : f32[2,b] {\n'
        "    ^(%a0: f32[2,b], %a1: f32[2,b])\n"
        "    %0 = add(%a0, %a1) : f32[2,b]\n"
        "    yield %0\n"
        "  }\n"
        '  %4 = sum(%"y[0]") {axes=[1], keepdims=false} : i64[2]\n'
        "  %5 = assign(%0, %1) after(%3) : token\n"
        "  return %3, %5\n"
        "}\n"
    )


def test_quoted_names_are_the_names() -> None:
    bare = "graph @g(%x: f32[]) -> (f32[]) stage=traced { return %x }"
    quoted = 'graph @"g"(%"x": f32[]) -> (f32[]) stage=traced { return %"x" }'
    assert parse_graph(quoted) == parse_graph(bare)
    digits = 'graph @g(%"0": f32[]) -> () stage=traced { %0 = abs(%"0") : f32[] return }'
    graph = parse_graph(digits)
    assert graph.arg_names == ("0",)
    assert graph.ops[0].operands == graph.args


# ---------------------------------------------------------------------------- showing faults


def test_broken_graphs_print() -> None:
    """The verifier shows broken graphs, so the printer must take them."""
    t = TensorType(float32, (2,))
    stray = Value(t)
    op = Operation("nonsense", [stray], {"n": None}, [t], control=[stray])
    graph = Graph("g", Block((Value(t),), (op,), (stray,)), (), "nowhere")
    assert print_graph(graph, notes={op: "this op\nis wrong"}) == (
        "graph @g(%unnamed.0: f32[2]) -> (f32[2]) stage=nowhere {\n"
        "  %0 = nonsense(%undefined) after(%undefined) {n=none} : f32[2]\n"
        "  // ^ this op\n"
        "  // ^ is wrong\n"
        "  return %undefined\n"
        "}\n"
    )


def test_notes_are_comments() -> None:
    graph = parse_graph(SAMPLE)
    assert parse_graph(print_graph(graph, notes={graph.ops[3]: "slow"})) == graph


def test_block_text_depends_on_structure_only() -> None:
    region = parse_graph(SAMPLE).ops[3].regions[0]
    renamed = SAMPLE.replace("%p", "%left").replace("%s", "%total")
    assert print_block(region) == print_block(parse_graph(renamed).ops[3].regions[0])


# ---------------------------------------------------------------------------- errors

ERRORS = [
    # (text in SAMPLE, its replacement, the complaint, what the caret is under, the hint)
    ("add(", "addd(", "there is no op 'addd'; did you mean 'add'", "addd", None),
    ("%f, %t\n", "%g, %t\n", "%g is not defined", "%g", "defined above its first use"),
    ("%f, %t\n", "%f, %tt\n", "did you mean '%t'?", "%tt", None),
    ("add(%p, %q)", "add(%p, %x)", "%x is defined outside of this region", "%x", "operand"),
    ("%m = sum", "%f = sum", "%f is defined twice: first on line 6", "%f", None),
    ("%q: f32", "%p: f32", "%p is defined twice", "%p", None),
    (": i64[2]\n", ": i64[3]\n", "given as i64[3], but 'sum' gives i64[2]", "i64[3]", ": i64[2]"),
    (" : i64[2]\n", "\n", "'sum' has 1 results, but 0 types are given", "sum", None),
    (": i64[2]\n", ": i64[2], i64[2]\n", "but 2 types are given", "i64[2], i64[2]", None),
    ("%m = sum", "%m, %n = sum", "'sum' has 1 results, but 2 are named", "%m, %n", None),
    ("%t = assign", "assign", "'assign' has 1 results, but 0 are named", "assign", None),
    ("axes=[1]", "axis=[1]", "no attribute 'axis'; did you mean 'axes'", "axis", "keepdims"),
    ("axes=[1]", 'axes="one"', "expected '['", '"one"', None),
    ("axes=[1]", "axes=[1], axes=[1]", "'axes' is given twice", "axes", None),
    ("{axes=[1]} ", "", "op 'sum' needs the attribute 'axes'", "sum", None),
    ("axes=[1]", "axes=none", "must not be none", "none", "integers"),
    ("axes=[1]", "axes=[1], keepdims=1", "expected true or false", "1", None),
    ("axes=[1]", "axes=[7]", "axes", "sum", None),  # the type rule of sum complains
    ("add(%p, %q)", "add(%p)", "op 'add' takes 2 operands, got 1", "add", None),
    ("%r) after", "%x) after", "does not fit a variable", "assign", None),
    ("dtype=f32", "dtype=float", "there is no dtype 'float'", "float", "bf16"),
    ("%x: f32[2,b]", "%x: f32", "expected '[' after the dtype", ",", None),
    ("%x: f32[2,b]", "%x: f32[2,b.c]", "is not a dimension", "b.c", None),
    ("%x: f32[2,b]", "%x: f32[2,-3]", "a dimension of size -3", "-", None),
    ('name="W"', 'name="W', "this string is not terminated", '"W} : ref', "\\n"),
    ('name="W"', 'name="\\q"', "unknown escape '\\\\q'", '"\\q"', None),
    ("[1.5, -0.0]", "[1.5, -0.0, 2]", "expected 2 elements here, got 3", "[", None),
    ("[1.5, -0.0]", "[1.5, 1e99]", "1e99 is too large for f32", "1e99", None),
    ("[1.5, -0.0]", "[1.5, %x]", "expected a number of type f32", "%x", None),
    ("f32[2] [1.5, -0.0]", "u8[1] [256]", "256 does not fit u8", "256", None),
    ("f32[2] [1.5, -0.0]", 'u8[9] base64("AAAA")', "needs 9 bytes, the data has 3", '"AAAA"', None),
    ("f32[2] [1.5, -0.0]", 'u8[3] base64("A!")', "this is not base64", '"A!"', None),
    ("f32[2] [1.5, -0.0]", "f32[b] splat(1)", "its shape must be known", "f32", None),
    (
        "stage=fused",
        "stage=fusd",
        "there is no stage 'fusd'; did you mean 'fused'",
        "fusd",
        "traced",
    ),
    ("-> (f32[2,b], token)", "-> (token)", "the graph returns (f32[2,b], token)", "(", None),
    ("%x: f32", "%7: f32", "a graph's argument needs a name", "%7", "quoted"),
    ('"m.py":3:5', '"m.py":3', "expected ':' and the column", ",", None),
    ("yield %s", "return %s", "expected an op or 'yield', got 'return'", "return", None),
    ("add(%p, %q)", "add(%p %q)", "expected ',' or ')' after an operand", "%q", None),
    ("%r = read", "% = read", "'%' must be followed by a value's name", "%", None),
    ("// what", "/ what", "unexpected character '/'", "/", "comment"),
    ("}\n", "}\ngraph", "after the end of the graph", "graph", "one graph"),
    ("graph @step", "@step", "expected 'graph' at the start", "@step", "graph @step"),
]


@pytest.mark.parametrize(
    ("old", "new", "what", "under", "hint"), ERRORS, ids=[f"{e[0]!r}->{e[1]!r}" for e in ERRORS]
)
def test_error_messages(old: str, new: str, what: str, under: str, hint: str | None) -> None:
    at = SAMPLE.rindex(old)
    text = SAMPLE[:at] + new + SAMPLE[at + len(old) :]
    with pytest.raises(ParseError) as caught:
        parse_graph(text, "a.weft")
    lines = str(caught.value).splitlines()
    assert what in lines[0]
    (place,) = caught.value.locations
    assert lines[0].startswith(f"a.weft:{place.line}:{place.column}: ")
    source = text.splitlines()[place.line - 1]
    assert lines[1] == "    " + source
    assert lines[2].index("^") == 4 + place.column - 1
    marked = lines[1][lines[2].index("^") : len(lines[2])]
    assert marked.startswith(under)
    if hint is not None:
        assert hint in lines[3]


def test_error_at_the_end_of_the_text() -> None:
    with pytest.raises(ParseError, match="the end of the text"):
        parse_graph(SAMPLE[: SAMPLE.index("return")])
    with pytest.raises(ParseError, match="expected 'graph' at the start"):
        parse_graph("")


def test_error_in_a_long_line_is_shortened() -> None:
    elements = ", ".join(["1.0"] * 500)
    text = SAMPLE.replace("[1.5, -0.0]", f"[{elements}, oops, {elements}]")
    with pytest.raises(ParseError) as caught:
        parse_graph(text)
    _, source, caret = str(caught.value).splitlines()[:3]
    assert len(source) < 170
    assert source[caret.index("^") :].startswith("oops")


def test_deep_nesting_is_refused() -> None:
    text = "graph @g() -> () stage=fused { " + "fused() {^() " * 5000
    with pytest.raises(ParseError, match="nested more than"):
        parse_graph(text)


def test_huge_splat_is_refused() -> None:
    with pytest.raises(ParseError, match="splat"):
        parse_graph(SAMPLE.replace("f32[2] [1.5, -0.0]", "f32[999999999999] splat(1.0)"))


TOKEN = re.compile(r'"[^"\n]*"|[\w.]+|\s+|.')


def corrupt(text: str, data: st.DataObject) -> str:
    """`text` with a few tokens or characters deleted, doubled, swapped, replaced or cut off."""
    for _ in range(data.draw(st.integers(1, 3))):
        pieces = TOKEN.findall(text) if data.draw(st.booleans()) else list(text)
        if len(pieces) < 2:
            return text
        i, j = (data.draw(st.integers(0, len(pieces) - 1)) for _ in range(2))
        match data.draw(st.integers(0, 6)):
            case 0:
                del pieces[i]
            case 1:
                pieces.insert(i, pieces[j])
            case 2:
                pieces[i], pieces[j] = pieces[j], pieces[i]
            case 3:
                pieces[i] = data.draw(
                    st.sampled_from(["-", "?", "99999999999999999999", "f32", "0"])
                )
            case 4:
                pieces[i] = data.draw(st.text(max_size=3))
            case 5:
                del pieces[i:]
            case 6:
                del pieces[min(i, j) : min(i, j) + 4]
        text = "".join(pieces)
    return text


@given(graphs(symbolic=True, max_ops=6), st.data())
@examples(400)
def test_corrupt_text_gives_a_parse_error(graph: Graph, data: st.DataObject) -> None:
    """`parse_graph` returns a graph that prints, or raises ParseError, whatever happened."""
    text = corrupt(print_graph(graph), data)
    failure: ParseError | None = None
    try:
        parsed = parse_graph(text)
    except ParseError as error:
        failure = error
    if failure is None:
        assert parse_graph(print_graph(parsed)) == parsed
    else:
        assert re.match(r"<text>:\d+:\d+: ", str(failure))
        assert "^" in str(failure)


@given(st.text() | st.text(alphabet='graph @%{}()[]:=,->"\\^/\n0b1'))
def test_any_text_gives_a_parse_error(text: str) -> None:
    with pytest.raises(ParseError):
        parse_graph(text)


def test_locations_are_kept() -> None:
    read = parse_graph(SAMPLE).ops[1]
    assert read.locations == (Location("m.py", 3, 5), Location("n.py", 4, 0))


def placed(*places: tuple[str, int]) -> Graph:
    """A graph whose ops have these locations, all of them in its last op."""
    x = Value(TensorType(float32, (2,)))
    ops, value = [], x
    everywhere = tuple(Location(file, line, 1) for file, line in places)
    for locations in (*((place,) for place in everywhere), everywhere):
        op = Operation("exp", (value,), {}, (x.type,), locations=locations)
        ops.append(op)
        value = op.result
    return Graph("g", Block((x,), tuple(ops), (value,)), ("x",), "traced")


def test_paths_print_as_names() -> None:
    """A path by the name of its file, a place in the file of the one before without it."""
    graph = placed(("/a/model.py", 3), ("/a/model.py", 4), ("/b/model.py", 5), ("m.py", 6),
                   ("C:\\x\\2 nets.py", 7), ("/a/model.py", 8))  # fmt: skip
    text = print_graph(graph)
    assert 'loc(model:3:1, 4:1, model_2:5:1, "m.py":6:1, file_2_nets:7:1, model:8:1)\n' in text
    assert text.endswith(
        'file model = "/a/model.py"\nfile model_2 = "/b/model.py"\n'
        'file file_2_nets = "C:\\\\x\\\\2 nets.py"\n'
    )
    parsed = parse_graph(text)
    assert parsed == graph
    assert [op.locations for op in parsed.ops] == [op.locations for op in graph.ops]
    assert "file" not in print_graph(graph, locations=False)
    both = Program((Part("/cpu:0", graph, (0,), (0,)), Part("/cpu:0", graph, (0,), (0,))))
    assert parse_program(print_program(both)) == both


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("loc(model:", "loc(modle:", "no file is called 'modle'"),
        ("loc(model:", "loc(3:", "expected a quoted string \\(the file\\) in loc"),
        ("file model =", "file model", "expected '='|no file is called"),
        ('file model = "/a/model.py"', 'file model = "/a/model.py"\nfile model = "b"',
         "the file 'model' is given twice"),
        ('file model = "/a/model.py"', 'file model = 3', "no file is called|quoted string"),
    ],
)  # fmt: skip
def test_bad_names_of_files(old: str, new: str, message: str) -> None:
    text = print_graph(placed(("/a/model.py", 3)))
    with pytest.raises(ParseError, match=message):
        parse_graph(text.replace(old, new, 1))
