# SPDX-License-Identifier: BSD-3-Clause
"""Odd safetensors files, for foreign_files.py."""
import json
import struct

import safetensors.torch

from foreign_values import Case

ENTRY = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
DATA = struct.pack("<f", 1.5)
TEXT = json.dumps(ENTRY)
NESTED = {"shape": {"a": [1]}}


def file_of(header, data=DATA):
    text = header if isinstance(header, (bytes, str)) else json.dumps(header)
    text = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(text)) + text + data


def of(dtype, shape, data=DATA, offsets=None):
    return file_of({"x": {"dtype": dtype, "shape": shape, "data_offsets": offsets or [0, len(data)]}}, data)


def with_field(field, text):
    return file_of('{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'.replace(field, text))


def two(first, second, data=DATA + DATA):
    return file_of({"a": ENTRY | {"data_offsets": first}, "b": ENTRY | {"data_offsets": second}}, data)


def deep(count):
    return file_of('{"x":{"more":' + "[" * count + "]" * count + "," + TEXT[1:] + "}")


WHOLE = file_of({"x": ENTRY})
DTYPES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1, "C64": 8, "U16": 2,
          "U32": 4, "U64": 8, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E5M2FNUZ": 1, "F8_E4M3FNUZ": 1}

FILES = {
    "safetensors": [WHOLE, file_of({}, b""), file_of({"__metadata__": {"format": "pt"}, "x": ENTRY}),
                    file_of(json.dumps({"x": ENTRY}) + "\n\n\t \r"), file_of({"x": ENTRY | {"shape": []}}),
                    file_of({"\u65e5\u672c \U0001f642 \0": ENTRY}), file_of(json.dumps({"x": ENTRY}, indent=2))]
                   + [of(dtype, [1], bytes([1]) * size) for dtype, size in DTYPES.items()],
    "safetensors with null as its metadata": [file_of({"__metadata__": None, "x": ENTRY})],
    "safetensors with unknown fields": [file_of({"x": ENTRY | {"more": more}}) for more in
                                        (1, -1, 1.5, None, True, "text", [], {}, [1, {"dtype": [2]}], NESTED, 1 << 70)]
                                       + [deep(100)],
    "safetensors with deep unknown fields": [deep(1000)],
    "safetensors with empty tensors": [of("F32", [0], b""), of("I8", [3, 0, 2], b"")],
    "safetensors of an empty tensor with a huge size": [of("F32", [0, 1 << 62], b"")],
    "safetensors with impossible sizes": [of("F32", [1 << 62]), of("F32", [1 << 32, 1 << 32]), of("F32", [1 << 64]), of("F32", [2]),
                                          of("F32", [])[:-4], of("F32", [1], offsets=[0, 2])],
    "safetensors with a name twice": [file_of('{"x":' + TEXT + ',"x":' + TEXT + "}"),
                                      file_of('{"__metadata__":{"a":"b","a":"c"},"x":' + TEXT + "}")],
    "safetensors with metadata or a field twice": [file_of('{"__metadata__":{},"__metadata__":{},"x":' + TEXT + "}"),
                                                   with_field('"dtype":"F32"', '"dtype":"F32","dtype":"F32"')],
    "safetensors with a list for a tensor": [file_of('{"x":["F32",[1],[0,4]]}')],
    "safetensors with a space before its header": [file_of(" " + json.dumps({"x": ENTRY})), file_of("\n{}", b"")],
    "safetensors with other metadata": [file_of({"__metadata__": more, "x": ENTRY}) for more in
                                        ({"a": 1}, {"a": None}, {"a": {}}, [], "text", 3)],
    "safetensors of an unknown dtype": [of("f32", [1]), of("F99", [1]), of("", [1]), of("F6_E2M3", [4], b"abc"),
                                        with_field('"F32"', "3"), with_field('"F32"', "null")],
    "safetensors of F4": [of("F4", [8])],
    "safetensors of F8_E8M0": [of("F8_E8M0", [4])],
    "safetensors with a wrong shape": [with_field("[1]", text) for text in ("[1.0]", "[-1]", "1", "null", '["1"]', "[1e0]", "[[1]]")],
    "safetensors with wrong offsets": [with_field("[0,4]", text) for text in
                                       ("[0,4,4]", "[4]", "[]", "[4,0]", "[-4,0]", "[0,5]", "[0,3]", "[1,5]", "null")]
                                      + [two([0, 4], [2, 6]), two([0, 4], [8, 12]), two([0, 4], [0, 4]), two([4, 8], [8, 12])],
    "safetensors whose header has another order": [two([4, 8], [0, 4])],
    "safetensors at odd places": [file_of({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
                                           "x": ENTRY | {"data_offsets": [1, 5]}}, b"\1" + DATA)],
    "safetensors with an empty tensor at an odd place": [file_of({"a": {"dtype": "U8", "shape": [0], "data_offsets": [2, 2]},
                                                                  "x": ENTRY})],
    "safetensors without a field": [with_field('"dtype":"F32",', ""), with_field('"shape":[1],', ""),
                                    with_field(',"data_offsets":[0,4]', ""), file_of({"x": {}}), file_of({"x": None})],
    "safetensors with bytes at its end": [WHOLE + b"x", file_of({}, b"x")],
    "safetensors cut short": [WHOLE[:count] for count in (0, 4, 8, 20, len(WHOLE) - 1)],
    "safetensors whose header is no JSON": [file_of(text) for text in ("", "x", "[]", "{", "{} {}", '{"x":%s,}' % TEXT, "{/**/}",
                                                                       '{"a\1":%s}' % TEXT, "\ufeff{}", "{}\0", '{"\\ud800":%s}' % TEXT)]
                                           + [file_of(b'{"\xff":' + TEXT.encode() + b"}")],
    "no safetensors": [b"PK\3\4" + bytes(60), b"\xff" * 20, struct.pack("<Q", 100_000_001) + b"{}"],
}


def in_order(tensors):
    """C++ keeps the order of the header, and the package does not: names decide here."""
    return dict(sorted(tensors.items()))


def cases(folder):
    for kind, files in FILES.items():
        for number, data in enumerate(files):
            path = folder / f"{kind.replace(' ', '_')}{number}"
            path.write_bytes(data)
            yield Case(kind, "safetensors", "safetensors", path, lambda: in_order(safetensors.torch.load_file(path)))
