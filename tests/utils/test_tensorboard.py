"""What is written for TensorBoard comes back from the files."""

import sys

import pytest

import probtorch
from probtorch.errors import FileError
from probtorch.utils.tensorboard import SummaryWriter


def test_without_tensorboardx_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(FileError, match=r"probtorch\[tensorboard\]"):
        SummaryWriter("somewhere")


@pytest.fixture
def written(tmp_path):
    """A function that logs with a writer and returns the values of all events, by tag."""
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event

    crc = pytest.importorskip("tensorboardX.crc32c").crc32c

    def masked(data):
        value = crc(data)
        return (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF

    def events(path):
        data = path.read_bytes()
        while data:
            length = int.from_bytes(data[:8], "little")
            assert int.from_bytes(data[8:12], "little") == masked(data[:8])
            body, data = data[12 : 12 + length], data[12 + length :]
            assert int.from_bytes(data[:4], "little") == masked(body)
            data = data[4:]
            event = Event()
            event.ParseFromString(body)
            yield event

    def run(log):
        with SummaryWriter(tmp_path / "log") as writer:
            assert writer.log_dir == writer.get_logdir() == str(tmp_path / "log")
            log(writer)
        found = {}
        for path in sorted((tmp_path / "log").rglob("events*")):
            for event in events(path):
                for value in event.summary.value:
                    found.setdefault(value.tag, []).append((event.step, value))
        return found

    return run


def test_a_hundred_scalars_come_back(written):
    def log(writer):
        for step in range(100):
            loss = probtorch.tensor(step / 4, requires_grad=True) * 1.0
            writer.add_scalar("loss", loss, step)

    found = written(log)["loss"]
    assert [step for step, _ in found] == list(range(100))
    assert [value.simple_value for _, value in found] == [step / 4 for step in range(100)]


def test_histograms_images_and_texts_are_made_of_tensors(written):
    def log(writer):
        writer.add_histogram("weights", probtorch.arange(10.0), 0, bins=5)
        writer.add_image("picture", probtorch.zeros(3, 4, 6), 0)
        writer.add_text("note", "hello", 0)
        writer.add_scalars("both", {"a": probtorch.tensor(1.0), "b": 2.0}, 0)

    found = written(log)
    ((_, histogram),) = found["weights"]
    assert histogram.histo.num == 10 and histogram.histo.sum == 45.0
    ((_, picture),) = found["picture"]
    assert (picture.image.height, picture.image.width) == (4, 6)
    assert sorted(value.simple_value for _, value in found["both"]) == [1.0, 2.0]
