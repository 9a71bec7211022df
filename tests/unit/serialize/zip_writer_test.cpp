// SPDX-License-Identifier: BSD-3-Clause
// Our zip files beside those of LibTorch's own writer.
#include <caffe2/serialize/inline_container.h>
#include <cstdlib>
#include <memory>
#include <stdexcept>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <lockstep/serialize/torch_file.h>

#include "serialize/storage.h"
#include "serialize/torch_format.h"
#include "serialize/zip.h"

namespace lockstep::testing {
namespace {

using Records = std::vector<std::pair<std::string, std::span<const std::byte>>>;

std::span<const std::byte> bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

// Keeps what is short, and of what is long the length.
class Short {
 public:
  void operator()(std::span<const std::byte> piece) {
    constexpr std::size_t most = 1 << 20;
    if (piece.size() > most) {
      text += fmt::format("<{}>", piece.size());
    } else {
      text.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    }
  }
  std::string text;
};

std::string ours(const Records& records) {
  Short sink;
  serialize::ZipWriter writer([&](auto piece) { sink(piece); });
  for (const auto& [name, data] : records) {
    writer.add(name, data, [&data = data] { return serialize::crc32_of(data); });
  }
  writer.finish();
  return sink.text;
}

std::string theirs(const Records& records) {
  Short sink;
  caffe2::serialize::PyTorchStreamWriter writer([&](const void* data, std::size_t size) {
    sink({static_cast<const std::byte*>(data), size});
    return size;
  });
  for (const auto& [name, data] : records) writer.writeRecord(name, data.data(), data.size());
  writer.writeEndOfFile();
  return sink.text;
}

// The identification is a hash whose kind is free: its digits, and their checksums.
std::string without_identification(std::string text) {
  constexpr std::size_t digits = 40;
  const std::string name = "archive/.data/serialization_id";
  const auto header = text.find(name);
  const auto record = text.find("PK\x07\x08", header);
  text.replace(record - digits, digits, digits, '?');
  text.replace(record + 4, 4, 4, '?');
  const auto entry = text.find(name, record);
  text.replace(entry - 30, 4, 4, '?');
  return text;
}

TEST(ZipWriter, WritesTheBytesOfLibTorchsWriter) {
  const std::string long_text(100'000, 'x');
  for (std::size_t length = 0; length < 70; ++length) {
    const std::string text(length, 'y');
    const Records records{{"data.pkl", bytes(text)},
                          {"byteorder", bytes("little")},
                          {"data/0", bytes(long_text)},
                          {"data/1", bytes(text)}};
    ASSERT_TRUE(without_identification(ours(records)) == without_identification(theirs(records))) << length;
  }
}

TEST(ZipWriter, WritesTheBytesOfLibTorchsWriterBeyondFourGigabytes) {
  constexpr std::size_t size = (std::size_t{1} << 32) + 5;
  // Unwritten pages share one page of zeros.
  const std::unique_ptr<void, decltype(&std::free)> zeros(std::calloc(size, 1), &std::free);
  ASSERT_TRUE(zeros);
  const Records records{{"data/0", {static_cast<const std::byte*>(zeros.get()), size}},
                        {"byteorder", bytes("little")},
                        {"data/1", bytes("after")}};
  EXPECT_TRUE(without_identification(ours(records)) == without_identification(theirs(records)));
}

TEST(ZipWriter, ComputesTheSizeInAdvance) {
  for (const auto count : {0, 1, 1000, 3'000'000}) {
    const Value value = Dict{{"a", at::ones({count})}, {"b", at::ones({3})}, {"c", "text"}};
    EXPECT_EQ(serialize::zip_size(serialize::pickle_value(value)), save_bytes(value).size());
  }
}

// Large tensors, whose checksums come from another thread, and small ones between them.
TEST(ZipWriter, ChecksumsOfOtherThreadsMatchTheData) {
  Dict dict;
  for (int i = 0; i < 12; ++i) dict.set(i, at::rand({i % 3 == 0 ? 10 : 700'000 + i}));
  const auto file = save_bytes(dict);
  EXPECT_TRUE(equal(load_bytes(file, {.verify = true}), dict));
}

TEST(ZipWriter, AFailureIsThrownWhileAThreadComputes) {
  const auto pickled = serialize::pickle_value(Value(at::ones({30'000'000})));
  EXPECT_THROW(serialize::write_zip(pickled, [](auto) { throw std::runtime_error("full"); }),
               std::runtime_error);
}

}  // namespace
}  // namespace lockstep::testing
