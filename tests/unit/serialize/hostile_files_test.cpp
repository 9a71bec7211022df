// SPDX-License-Identifier: BSD-3-Clause
// Files that are damaged or mean harm end in a CheckpointError that names them.
#include <caffe2/serialize/inline_container.h>
#include <functional>

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/serialize/torch_file.h>

#include "support/error_of.h"

namespace lockstep::hostile_files_test {
namespace {

using ::testing::HasSubstr;

constexpr const char* kName = "evil.pt";

std::string error_of(const std::string& bytes, const LoadOptions& options = {}) {
  auto text = testing::error_of<CheckpointError>([&] { load_bytes(bytes, options, kName); });
  EXPECT_THAT(text, ::testing::AnyOf("", HasSubstr(kName)));
  return text;
}

// A file of torch.save with this pickle, and a storage "0" of 16 bytes.
std::string file_with(const std::string& pickle) {
  std::string bytes;
  caffe2::serialize::PyTorchStreamWriter writer([&](const void* data, std::size_t size) {
    bytes.append(static_cast<const char*>(data), size);
    return size;
  });
  const std::string storage(16, '\1');
  writer.writeRecord("data.pkl", pickle.data(), pickle.size());
  writer.writeRecord("data/0", storage.data(), storage.size());
  writer.writeEndOfFile();
  return bytes;
}

std::string joined(std::initializer_list<std::string_view> parts) {
  std::string whole;
  for (const auto part : parts) whole.append(part);
  return whole;
}

std::string pickled(const std::string& body) { return joined({"\x80\x02", body, "."}); }
std::string text(const std::string& value) {
  const std::string length{static_cast<char>(value.size()), '\0', '\0', '\0'};
  return joined({"X", length, value});
}
std::string number(std::int64_t value) {
  return joined({"\x8a\x08", {reinterpret_cast<const char*>(&value), sizeof(value)}});
}
std::string tuple(const std::string& items) { return joined({"(", items, "t"}); }

std::string storage(std::int64_t count, const std::string& key = "0",
                    const std::string& type = "FloatStorage") {
  return joined(
      {tuple(joined({text("storage"), "ctorch\n", type, "\n", text(key), text("cpu"), number(count)})), "Q"});
}

std::string tensor(const std::string& storage_of, std::int64_t offset, const std::string& sizes,
                   const std::string& strides) {
  const auto arguments = joined(
      {storage_of, number(offset), tuple(sizes), tuple(strides), "\x89", "ccollections\nOrderedDict\n)R"});
  return joined({"ctorch._utils\n_rebuild_tensor_v2\n", tuple(arguments), "R"});
}

std::string error_of_pickle(const std::string& body) { return error_of(file_with(pickled(body))); }

Value sample() {
  return Dict{{"weights", at::arange(6, at::kFloat).view({2, 3})}, {"epoch", 3}, {"names", List{"a", "b"}}};
}

TEST(HostileFiles, TheHelpersWriteAValidFile) {
  const auto value =
      load_bytes(file_with(pickled(tensor(storage(4), 0, number(2) + number(2), number(2) + number(1)))));
  EXPECT_EQ(value.as_tensor().sizes(), at::IntArrayRef({2, 2}));
}

TEST(HostileFiles, CutShortAnywhere) {
  const auto whole = save_bytes(sample());
  for (std::size_t size = 0; size < whole.size(); size += 1 + size / 50) {
    EXPECT_NE(error_of(whole.substr(0, size)), "") << size << " of " << whole.size() << " bytes";
  }
}

TEST(HostileFiles, EveryInvertedByteIsDetectedOrHarmless) {
  const auto whole = save_bytes(sample());
  std::size_t found = 0;
  for (std::size_t place = 0; place < whole.size(); ++place) {
    auto damaged = whole;
    damaged[place] = static_cast<char>(~damaged[place]);
    if (!error_of(damaged, {.verify = true}).empty()) ++found;
  }
  EXPECT_GT(found, whole.size() / 5);
}

TEST(HostileFiles, DamagedDataIsFoundByItsChecksum) {
  auto bytes = save_bytes(Dict{{"weights", at::full({1000}, 7, at::kFloat)}});
  const auto place = bytes.find(std::string("\0\0\xe0\x40\0\0\xe0\x40", 8));
  ASSERT_NE(place, std::string::npos);
  bytes[place + 100] = 'x';
  EXPECT_EQ(error_of(bytes), "");
  EXPECT_THAT(error_of(bytes, {.verify = true}), HasSubstr("checksum"));
}

TEST(HostileFiles, OtherGlobalsAreRejectedAndNamed) {
  EXPECT_THAT(error_of_pickle("cos\nsystem\n" + tuple(text("true")) + "R"), HasSubstr("os.system"));
  EXPECT_THAT(error_of_pickle("cbuiltins\neval\n" + tuple(text("1")) + "R"), HasSubstr("builtins.eval"));
  EXPECT_THAT(error_of_pickle("c__main__\nNet\n)\x81"), HasSubstr("__main__.Net"));
}

TEST(HostileFiles, MalformedPickles) {
  for (const auto* body : {"",
                           "0",
                           "1",
                           "t",
                           "R",
                           "a",
                           "s",
                           "u",
                           "e",
                           "b",
                           "h\1",
                           "\x85",
                           "Q",
                           "(",
                           "((N",
                           "NN",
                           "Na",
                           "]}s",
                           "}(Nu",
                           ")R",
                           "ctorch\nSize\nNR",
                           "cno newline",
                           "X\xff\xff\xff\xff",
                           "\x8b\xff\xff\xff\xff",
                           "\x8e\xff\xff\xff\xff\xff\xff\xff\xff",
                           "r\xff\xff\xff\xff",
                           "I1\n",
                           "Nq\1h\2",
                           "ccollections\nOrderedDict\n"}) {
    EXPECT_NE(error_of_pickle(body), "") << body;
  }
  EXPECT_THAT(error_of(file_with("\x80\x09N.")), HasSubstr("protocol 9"));
}

TEST(HostileFiles, ContainersThatHoldThemselves) {
  EXPECT_THAT(error_of_pickle("]q\1h\1a"), HasSubstr("holds itself"));
  EXPECT_THAT(error_of_pickle("}q\1" + text("k") + "h\1s"), HasSubstr("holds itself"));
  EXPECT_THAT(error_of_pickle("]q\1}" + text("k") + "h\1sa"), HasSubstr("holds itself"));
  EXPECT_THAT(error_of_pickle(std::string("ccollections\nOrderedDict\n)Rq\1") + text("k") + "h\1s"),
              HasSubstr("holds itself"));
}

TEST(HostileFiles, TooDeepNesting) {
  EXPECT_THAT(error_of_pickle(std::string(100'000, ']') + std::string(99'999, 'a')), HasSubstr("nested"));
  EXPECT_NE(error_of_pickle("N" + std::string(1'000'000, '\x85')), "");
}

// 2 to the power of 60 values of 200 bytes.
TEST(HostileFiles, EndlesslyRepeatedParts) {
  std::string body = "]q" + std::string(1, '\0');
  for (char level = 1; level < 60; ++level) {
    const std::string before{'h', static_cast<char>(level - 1)};
    body += "0](" + before + before + "eq" + std::string(1, level);
  }
  EXPECT_THAT(error_of_pickle(body), HasSubstr("beyond any reasonable size"));
}

// 8 KB, fetched half a million times.
TEST(HostileFiles, EndlesslyRepeatedTexts) {
  const std::string length("\x00\x20\x00\x00", 4);
  std::string body = "](X" + length + std::string(0x2000, 'x') + "q" + std::string(1, '\0');
  for (int i = 0; i < 500'000; ++i) body += std::string("h\0", 2);
  EXPECT_THAT(error_of_pickle(body + "e"), HasSubstr("beyond any reasonable size"));
}

// Each would be compared with all before it if NaN were no key.
TEST(HostileFiles, ADictOfNothingButNaNs) {
  std::string body = "}(G" + std::string("\x7f\xf8\0\0\0\0\0\0", 8) + "q" + std::string(1, '\0') + "N";
  for (int i = 0; i < 300'000; ++i) body += std::string("h\0N", 3);
  EXPECT_EQ(load_bytes(file_with(pickled(body + "u"))).as_dict().size(), 1U);
}

TEST(HostileFiles, TensorsThatReachBeyondTheirStorage) {
  const auto one = [](std::int64_t offset, std::int64_t size, std::int64_t stride) {
    return error_of_pickle(tensor(storage(4), offset, number(size), number(stride)));
  };
  EXPECT_EQ(one(0, 4, 1), "");
  EXPECT_EQ(one(3, 1, 1), "");
  EXPECT_EQ(one(100, 0, 1), "");
  constexpr auto most = std::numeric_limits<std::int64_t>::max();
  EXPECT_THAT(one(1, 4, 1), HasSubstr("reaches to element 5"));
  EXPECT_NE(one(0, 4, 2), "");
  EXPECT_NE(one(-1, 1, 1), "");
  EXPECT_NE(one(0, -1, 1), "");
  EXPECT_NE(one(0, 2, -1), "");
  EXPECT_NE(one(most, 1, 1), "");
  EXPECT_NE(one(0, most, most), "");
  EXPECT_NE(error_of_pickle(tensor(storage(4), 0, number(most) + number(most), number(0) + number(0))), "");
  EXPECT_NE(error_of_pickle(tensor(storage(4), 0, number(1), number(1) + number(1))), "");
}

TEST(HostileFiles, MissingStorages) {
  const auto one = [](const std::string& of) { return error_of_pickle(tensor(of, 0, number(1), number(1))); };
  EXPECT_THAT(one(storage(5)), HasSubstr("should have 20 bytes"));
  EXPECT_THAT(one(storage(4, "../../secret")), HasSubstr("missing"));
  EXPECT_NE(one(storage(-1)), "");
  EXPECT_NE(one(storage(std::numeric_limits<std::int64_t>::max())), "");
  EXPECT_THAT(one(storage(4, "0", "QInt8Storage")), HasSubstr("quantized"));
  EXPECT_THAT(error_of_pickle(storage(4)), HasSubstr("bare torch storage"));
  EXPECT_NE(error_of_pickle(tuple(text("module")) + "Q"), "");
}

TEST(HostileFiles, SparseTensorsOutOfBounds) {
  const auto indices =
      tensor(storage(2, "0", "LongStorage"), 0, number(1) + number(2), number(2) + number(1));
  const auto values = tensor(storage(2), 0, number(2), number(1));
  const auto layout = "ctorch.serialization\n_get_layout\n" + tuple(text("torch.sparse_coo")) + "R";
  const auto size = "ctorch\nSize\n" + tuple(tuple(number(3))) + "R";
  const auto body = "ctorch._utils\n_rebuild_sparse_tensor\n" +
                    tuple(layout + tuple(indices + values + size + "\x89")) + "R";
  EXPECT_THAT(error_of_pickle(body), HasSubstr("LibTorch rejects"));
}

// Checking it element by element would take years.
TEST(HostileFiles, SparseTensorsLargerThanTheFile) {
  constexpr std::int64_t many = std::int64_t{1} << 50;
  const auto indices =
      tensor(storage(2, "0", "LongStorage"), 0, number(1) + number(many), number(0) + number(0));
  const auto values = tensor(storage(2), 0, number(many), number(0));
  const auto layout = "ctorch.serialization\n_get_layout\n" + tuple(text("torch.sparse_coo")) + "R";
  const auto size = "ctorch\nSize\n" + tuple(tuple(number(3))) + "R";
  const auto body = "ctorch._utils\n_rebuild_sparse_tensor\n" +
                    tuple(layout + tuple(indices + values + size + "\x89")) + "R";
  EXPECT_THAT(error_of_pickle(body), HasSubstr("larger than their storage"));
}

TEST(HostileFiles, AStateForATensorIsRejected) {
  EXPECT_THAT(error_of_pickle(tensor(storage(4), 0, number(1), number(1)) + "Nb"),
              HasSubstr("in a way that PyTorch does not"));
}

TEST(HostileFiles, OtherKindsOfFiles) {
  EXPECT_THAT(error_of(""), HasSubstr("empty"));
  EXPECT_THAT(error_of("no checkpoint at all, but text"), HasSubstr(kName));
  EXPECT_THROW(load("/nowhere/net.pt"), CheckpointError);
  EXPECT_THROW(load("/tmp"), CheckpointError);
  std::string script;
  caffe2::serialize::PyTorchStreamWriter writer([&](const void* data, std::size_t size) {
    script.append(static_cast<const char*>(data), size);
    return size;
  });
  for (const auto* record : {"data.pkl", "constants.pkl"}) writer.writeRecord(record, "N.", 2);
  writer.writeEndOfFile();
  EXPECT_THAT(error_of(script), HasSubstr("torch::load"));
}

TEST(HostileFiles, UnsupportedValuesAreNamed) {
  const auto saving = [](const Value& value) {
    try {
      save_bytes(value);
    } catch (const CheckpointError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(saving(at::Tensor()), HasSubstr("undefined"));
  EXPECT_THAT(saving("M\xfcnchen"), HasSubstr("UTF-8"));
  EXPECT_THAT(saving("\xc0\x80"), HasSubstr("UTF-8"));
  EXPECT_EQ(saving("München 🙂"), "");
  EXPECT_THAT(saving(at::quantize_per_tensor(at::ones({2}), 0.1, 0, at::kQInt8)), HasSubstr("quantized"));
}

}  // namespace
}  // namespace lockstep::hostile_files_test
