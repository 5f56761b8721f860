"""A part shares with others what they have in common, and is a value of nineteen fields to whoever asks."""

import pickle

from ckpt_tools import Kind, Part

PART = Part("/r/iter_7/x.pt", "megatron", "model", "model", "run", "/r", home="/r/iter_7", rank=3, step=7)


def test_it_is_a_tuple_of_its_fields() -> None:
    assert len(PART) == len(PART._fields) == 19
    assert PART[0] == PART.path == "/r/iter_7/x.pt"
    assert PART[-1] == PART.findings == ()
    assert Part(*PART) == PART
    assert hash(Part(*PART)) == hash(PART)
    assert list(PART._asdict()) == list(PART._fields)


def test_a_changed_copy_differs_in_that_field_alone() -> None:
    for name, value in {"path": "x", "kind": Kind.BEST, "rank": 4, "epoch": 1, "size": -1}.items():
        copy = PART._replace(**{name: value})
        assert copy != PART
        assert copy._asdict() == PART._asdict() | {name: value}


def test_it_comes_back_from_wherever_it_is_sent() -> None:
    assert pickle.loads(pickle.dumps(PART)) == PART
    assert repr(PART).startswith("Part(path='/r/iter_7/x.pt', layout='megatron'")
