# SPDX-License-Identifier: BSD-3-Clause
"""Event files of both languages, read by TensorBoard.

tensorboard_events.py calls <folder>: makes the calls of tensorboard_test.cpp, with the tensors of inputs.pt, in
    <folder>/python, and fails where <folder>/cpp has other events.
tensorboard_events.py scalars <folder>: prints "<tag> <step> <value>" for what TensorBoard shows of a folder.
"""
import io
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.context import RequestContext
from tensorboard.plugins import base_plugin
from tensorboard.plugins.hparams import api_pb2, backend_context, get_experiment, list_session_groups
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from torch.utils.tensorboard import SummaryWriter

TIME = 1234.5
BINS = ["tensorflow", "auto", "doane", "fd", "rice", "scott", "sqrt", "sturges", 1, 10, [-1.0, 0.0, 0.5, 3.0]]


def write(folder, inputs):
    writer = SummaryWriter(folder, filename_suffix=".end")
    for step, value in enumerate(inputs["scalars"].tolist()):
        writer.add_scalar("loss", value, step, TIME + step)
    writer.add_scalar("now/and without a step", 2)
    writer.add_scalar("negative", 1, -7, TIME)
    writer.add_scalars("rates/of", {"a": 1, "b/c": 2}, 3, TIME)
    writer.add_scalars("rates/of", {"a": 3}, 4)
    for name in ("normal", "integers", "peaked", "constant", "half", "wild"):
        for number, bins in enumerate(BINS):
            if name != "wild" or bins == "tensorflow":
                writer.add_histogram(f"{name}/{number}", inputs[name], number, bins, TIME)
    for most in (1, 7, 100, 10000):
        writer.add_histogram(f"at most {most}", inputs["normal"], 1, "tensorflow", TIME, most)
        writer.add_histogram(f"of 50 at most {most}", inputs["normal"], 1, 50, TIME, most)
    for name, image in inputs["images"].items():
        writer.add_image(name, image, 5, TIME, name.split(" ")[0])
    writer.add_image("default", inputs["images"]["CHW float"])
    writer.add_images("batch", inputs["images"]["NCHW"], 6)
    writer.add_text("text", "two\n**lines** äöü", 7, TIME)
    writer.add_hparams({"lr": 0.1, "bsize": 32, "net": "resnet", "bias": True, "none": None, "decay": torch.tensor([0.5])},
                       {"hparam/accuracy": 0.75, "hparam/loss": 0.25},
                       {"lr": [0.1, 0.2], "net": ["resnet", "vit"], "bias": [False, True]}, "run", 9)
    writer.close()
    resumed = SummaryWriter(folder, purge_step=2)
    resumed.add_scalar("loss", 100, 2, TIME)
    resumed.close()


def events(folder):
    """The events with a summary or a session, by the name of their folder."""
    found = {}
    for path in sorted(folder.rglob("*tfevents*")):
        of_folder = found.setdefault(str(path.parent.relative_to(folder)), [])
        records = [Event.FromString(record) for record in RawEventFileLoader(str(path)).Load()]
        assert records[0].file_version == "brain.Event:2"
        of_folder += [record for record in records if not record.file_version]
    return found


def compare_histograms(ours, theirs):
    np.testing.assert_allclose(ours.sum, theirs.sum, rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(ours.sum_squares, theirs.sum_squares, rtol=1e-12)
    ours.sum, ours.sum_squares = theirs.sum, theirs.sum_squares


def compare_images(ours, theirs):
    pixels = [np.asarray(Image.open(io.BytesIO(image.encoded_image_string))) for image in (ours, theirs)]
    np.testing.assert_array_equal(*pixels)
    ours.encoded_image_string = theirs.encoded_image_string


def compare_hparams(ours, theirs):
    # Entries of a map have no order.
    assert HParamsPluginData.FromString(ours.content) == HParamsPluginData.FromString(theirs.content), (ours, theirs)
    ours.content = theirs.content


def compare(ours, theirs):
    if theirs.wall_time > 1e9:  # of now
        assert abs(ours.wall_time - theirs.wall_time) < 600
        ours.wall_time = theirs.wall_time
    for mine, other in zip(ours.summary.value, theirs.summary.value):
        if other.HasField("histo"):
            compare_histograms(mine.histo, other.histo)
        if other.HasField("image"):
            compare_images(mine.image, other.image)
        if other.metadata.plugin_data.plugin_name == "hparams":
            compare_hparams(mine.metadata.plugin_data, other.metadata.plugin_data)
    assert str(ours) == str(theirs), f"{ours}\nPython:\n{theirs}"
    assert ours == theirs, ours


def hparams_table(folder):
    runs = plugin_event_multiplexer.EventMultiplexer().AddRunsFromDirectory(str(folder))
    runs.Reload()
    provider = data_provider.MultiplexerDataProvider(runs, str(folder))
    context = backend_context.Context(base_plugin.TBContext(data_provider=provider))
    experiment = get_experiment.Handler(RequestContext(), context, "", api_pb2.GetExperimentRequest()).run()
    columns = [api_pb2.ColParams(hparam=info.name) for info in experiment.hparam_infos]
    columns += [api_pb2.ColParams(metric=info.name) for info in experiment.metric_infos]
    request = api_pb2.ListSessionGroupsRequest(start_index=0, slice_size=10, col_params=columns,
                                               allowed_statuses=[api_pb2.STATUS_SUCCESS])
    rows = list_session_groups.Handler(RequestContext(), context, "", request).run()
    assert len(rows.session_groups) == 1 and len(columns) == 7, (rows, columns)
    for group in rows.session_groups:
        for value in [*group.metric_values, *(value for session in group.sessions for value in session.metric_values)]:
            value.wall_time_secs = 0
    return experiment, rows


def shown(folder):
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0, "tensors": 0, "histograms": 0})
    accumulator.Reload()
    return accumulator


def compare_calls(folder):
    write(str(folder / "python"), torch.load(folder / "inputs.pt"))
    ours, theirs = events(folder / "cpp"), events(folder / "python")
    assert ours.keys() == theirs.keys(), (ours.keys(), theirs.keys())
    for name, of_folder in theirs.items():
        of_folder = [event for event in of_folder if event.WhichOneof("what")]
        assert len(ours[name]) == len(of_folder), (name, len(ours[name]), len(of_folder))
        for mine, other in zip(ours[name], of_folder):
            compare(mine, other)
    assert hparams_table(folder / "cpp") == hparams_table(folder / "python")
    ours, theirs = shown(folder / "cpp"), shown(folder / "python")
    assert ours.Tags() == theirs.Tags(), (ours.Tags(), theirs.Tags())
    assert ours.Scalars("loss") == theirs.Scalars("loss")
    assert [event.value for event in ours.Scalars("loss")][-1] == 100 and len(ours.Scalars("loss")) == 3


def main():
    what, folder = sys.argv[1:]
    if what == "calls":
        compare_calls(Path(folder))
    else:
        accumulator = shown(folder)
        for tag in accumulator.Tags()["scalars"]:
            for event in accumulator.Scalars(tag):
                print(tag, event.step, event.value)


if __name__ == "__main__":
    main()
