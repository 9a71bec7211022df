# SPDX-License-Identifier: BSD-3-Clause
"""cifar_files.py FOLDER: writes small CIFAR datasets in the published forms, the folders and the archives, and
expected.pt with their images, labels and MD5s."""
import hashlib
import pathlib
import pickle
import pickletools
import sys
import tarfile

import numpy
import torch

folder = pathlib.Path(sys.argv[1])
numbers = numpy.random.RandomState(20240303)
IMAGES = 3  # in a file


def as_python_2_wrote_it(contents):
    """A pickle of protocol 2 in which text and bytes are Python 2's str."""
    old = {"SHORT_BINBYTES": b"U", "BINBYTES": b"T"}
    pickled = bytearray(pickle.dumps(contents, protocol=3))
    for opcode, _, position in list(pickletools.genops(bytes(pickled))):
        if opcode.name in old:
            pickled[position:position + 1] = old[opcode.name]
    pickled[1] = 2
    return bytes(pickled).replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


class Written:
    """The files of one dataset, in both forms, with what torchvision reads from the Python one."""

    def __init__(self, name, python, binary):
        self.name, self.python, self.binary = name, python, binary
        self.expected = {"md5": {}}

    def add(self, split, python_names, binary_names, classes, key):
        images, labels = [], []
        for python_name, binary_name in zip(python_names, binary_names):
            data = numbers.randint(0, 256, (IMAGES, 3072), dtype=numpy.uint8)
            fine = numbers.randint(0, classes, IMAGES).tolist()
            contents = {b"batch_label": b"a batch", key: fine, b"data": data, b"filenames": [b"x.png"] * IMAGES}
            if classes == 100:
                contents[b"coarse_labels"] = [label % 20 for label in fine]
            pickled = as_python_2_wrote_it(contents)
            assert pickle.loads(pickled, encoding="latin1")["data"].tobytes() == data.tobytes()
            self.write(self.python, python_name, pickled)
            record = [bytes([label % 20] * (classes == 100) + [label]) + row.tobytes() for label, row in zip(fine, data)]
            self.write(self.binary, binary_name, b"".join(record))
            images.append(torch.from_numpy(data).reshape(-1, 3, 32, 32))
            labels += fine
        self.expected[split] = (torch.cat(images), torch.tensor(labels))

    def write(self, form, name, contents):
        path = folder / ("python" if form == self.python else "binary") / form / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents)
        self.expected["md5"][name] = hashlib.md5(contents).hexdigest()

    def pack(self):
        for kind, form in (("python", self.python), ("binary", self.binary)):
            path = folder / f"{kind} archive" / f"{self.name}-{kind}.tar.gz"
            path.parent.mkdir(exist_ok=True)
            with tarfile.open(path, "w:gz") as archive:
                archive.add(folder / kind / form, form)
            self.expected["md5"][path.name] = hashlib.md5(path.read_bytes()).hexdigest()
        return self.expected


cifar10 = Written("cifar-10", "cifar-10-batches-py", "cifar-10-batches-bin")
batches = [f"data_batch_{i}" for i in range(1, 6)]
cifar10.add("train", batches, [f"{name}.bin" for name in batches], 10, b"labels")
cifar10.add("test", ["test_batch"], ["test_batch.bin"], 10, b"labels")
cifar100 = Written("cifar-100", "cifar-100-python", "cifar-100-binary")
cifar100.add("train", ["train"], ["train.bin"], 100, b"fine_labels")
cifar100.add("test", ["test"], ["test.bin"], 100, b"fine_labels")
torch.save({"CIFAR10": cifar10.pack(), "CIFAR100": cifar100.pack()}, folder / "expected.pt")
