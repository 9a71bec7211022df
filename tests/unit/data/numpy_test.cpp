// SPDX-License-Identifier: BSD-3-Clause
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <zlib.h>

#include <lockstep/base/error.h>
#include <lockstep/data/files.h>

#include "fixtures.h"
#include "support/error_of.h"

namespace lockstep::data {
namespace {

using lockstep::testing::error_of;
using ::testing::AllOf;
using testing::bytes_of_file;
using ::testing::HasSubstr;
using testing::TempFolder;
using testing::write_file;

std::string little_endian(std::uint64_t number, std::size_t bytes) {
  std::string text;
  for (std::size_t i = 0; i < bytes; ++i) text.push_back(static_cast<char>(number >> (8 * i)));
  return text;
}

std::string npy_bytes(const std::string& header, const std::string& values, char version = 1) {
  return std::string("\x93NUMPY") + version + '\0' + little_endian(header.size(), version == 1 ? 2 : 4) +
         header + values;
}

std::string npy_header(const std::string& descr, const std::string& shape) {
  return "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }";
}

const std::string kTwoBytes = npy_bytes(npy_header("|u1", "(2,)"), "\1\2");

// What a file of these bytes is refused for.
std::string refusal(const std::string& bytes) {
  const TempFolder folder;
  write_file(folder / "x.npy", bytes);
  auto message = error_of<DataError>([&] { load_numpy(folder / "x.npy"); });
  EXPECT_THAT(message, HasSubstr("x.npy"));
  return message;
}

TEST(LoadNumpy, MapsTheFileAndDoesNotChangeIt) {
  const TempFolder folder;
  write_file(folder / "x.npy", kTwoBytes);
  auto array = load_numpy(folder / "x.npy");
  array.add_(1);
  EXPECT_TRUE(at::equal(array, at::tensor({2, 3}, at::kByte)));
  EXPECT_EQ(bytes_of_file(folder / "x.npy"), kTwoBytes);
  // Another file of this name does not change the tensor.
  write_file(folder / "y.npy", npy_bytes(npy_header("|u1", "(2,)"), "\7\7"));
  std::filesystem::rename(folder / "y.npy", folder / "x.npy");
  EXPECT_EQ(array[0].item<int>(), 2);
}

TEST(LoadNumpy, ReadsHeadersInAnyForm) {
  const TempFolder folder;
  const std::string header = "{\"shape\":(1L,2L),\"fortran_order\":True,\"descr\":\"<i2\"}\n";
  write_file(folder / "x.npy", npy_bytes(header, std::string("\1\0\2\0", 4), 2));
  EXPECT_TRUE(at::equal(load_numpy(folder / "x.npy"), torch::tensor({{1, 2}}, at::kShort)));
}

TEST(LoadNumpy, RefusesWhatIsNoTensor) {
  EXPECT_THAT(refusal("PK"), HasSubstr("is not a NumPy file"));
  EXPECT_THAT(refusal(""), HasSubstr("is not a NumPy file"));
  EXPECT_THAT(refusal(npy_bytes(npy_header("|O", "(2,)"), "ab")), HasSubstr("its dtype is '|O'"));
  EXPECT_THAT(refusal(npy_bytes(npy_header("<U5", "(2,)"), "ab")), HasSubstr("its dtype is '<U5'"));
  EXPECT_THAT(refusal(npy_bytes(npy_header("", "(2,)"), "ab")), HasSubstr("its dtype is ''"));
  EXPECT_THAT(refusal(npy_bytes("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", "abcd")),
              HasSubstr("structured array"));
  EXPECT_THAT(refusal(npy_bytes(npy_header("|u1", "(2,)"), "\1\2", 4)), HasSubstr("version 4"));
}

TEST(LoadNumpy, RefusesEveryTruncation) {
  for (std::size_t size = 0; size < kTwoBytes.size(); ++size) {
    EXPECT_NE(refusal(kTwoBytes.substr(0, size)), "") << size;
  }
}

TEST(LoadNumpy, RefusesHostileHeaders) {
  const std::string damaged = "its NumPy header is damaged";
  const auto huge = std::to_string(std::uint64_t{1} << 62);
  for (const std::string header :
       {"", "{", "{}", "{'descr'", "{'descr': '|u1', 'fortran_order': False}",
        "{'shape': (1,), 'shape': (1,)}", "{'descr': '|u1', 'fortran_order': Yes, 'shape': (1,)}",
        "{'exec': 'boom'}", "{'descr': '|u1' 'shape': (1,)}", "((((((((", "{'descr': '|u1"}) {
    EXPECT_THAT(refusal(npy_bytes(header, "ab")), HasSubstr(damaged)) << header;
  }
  std::string many = "(";
  for (int i = 0; i < 65; ++i) many += "1,";
  for (const std::string shape : {"(-1,)", "(1.5,)", "(2", "2", "(,)", "(1 1)", "(99999999999999999999,)"}) {
    EXPECT_THAT(refusal(npy_bytes(npy_header("|u1", shape), "ab")), HasSubstr(damaged)) << shape;
  }
  EXPECT_THAT(refusal(npy_bytes(npy_header("|u1", many + ")"), "a")), HasSubstr(damaged));
  EXPECT_THAT(refusal(npy_bytes(npy_header("|u1", "(" + huge + ")"), "ab")),
              HasSubstr("needs 4611686018427387904 bytes, but 2 follow"));
  EXPECT_THAT(refusal(npy_bytes(npy_header("<f8", "(" + huge + ")"), "ab")), HasSubstr("more than 2^63"));
  // No values, but strides that cannot be counted.
  EXPECT_THAT(refusal(npy_bytes(npy_header("|u1", "(" + huge + ", " + huge + ", 0)"), "")),
              HasSubstr("more than 2^63"));
  EXPECT_THAT(refusal(npy_bytes(std::string(100'000, ' '), "", 2)), HasSubstr("has 100000 bytes"));
}

TEST(LoadNumpy, NamesAMissingFile) {
  EXPECT_THAT(error_of<DataError>([] { load_numpy("/nowhere/x.npy"); }),
              AllOf(HasSubstr("/nowhere/x.npy"), HasSubstr("No such file")));
}

struct Member {
  std::string name;
  std::string bytes;
  bool deflated = false;
  std::uint64_t claimed = 0;  // the size in the directory; 0: the real one
  std::uint32_t crc_error = 0;
};

std::string deflate_raw(const std::string& bytes) {
  z_stream stream{};
  deflateInit2(&stream, 9, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  std::string packed(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  deflate(&stream, Z_FINISH);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

std::string zip_bytes(const std::vector<Member>& members) {
  std::string files;
  std::string directory;
  for (const auto& member : members) {
    const auto packed = member.deflated ? deflate_raw(member.bytes) : member.bytes;
    const auto crc = ::crc32(0, reinterpret_cast<const Bytef*>(member.bytes.data()),
                             static_cast<uInt>(member.bytes.size())) ^
                     member.crc_error;
    const auto size = member.claimed != 0 ? member.claimed : member.bytes.size();
    const auto common = little_endian(20, 2) + little_endian(0, 2) +
                        little_endian(member.deflated ? 8 : 0, 2) + little_endian(0, 4) +
                        little_endian(crc, 4) + little_endian(packed.size(), 4) + little_endian(size, 4) +
                        little_endian(member.name.size(), 2) + little_endian(0, 2);
    directory += "PK\1\2" + little_endian(20, 2) + common + std::string(10, '\0') +
                 little_endian(files.size(), 4) + member.name;
    files += "PK\3\4" + common + member.name + packed;
  }
  const auto count = little_endian(members.size(), 2);
  return files + directory + "PK\5\6" + std::string(4, '\0') + count + count +
         little_endian(directory.size(), 4) + little_endian(files.size(), 4) + std::string(2, '\0');
}

std::string npz_refusal(const std::vector<Member>& members) {
  const TempFolder folder;
  write_file(folder / "x.npz", zip_bytes(members));
  auto message = error_of<DataError>([&] { load_npz(folder / "x.npz"); });
  EXPECT_THAT(message, HasSubstr("x.npz"));
  return message;
}

TEST(LoadNpz, IgnoresWhatIsNoArray) {
  const TempFolder folder;
  write_file(folder / "x.npz", zip_bytes({{"notes.txt", "text"}, {"a.npy", kTwoBytes, true}}));
  const auto arrays = load_npz(folder / "x.npz");
  ASSERT_EQ(arrays.size(), 1U);
  EXPECT_TRUE(at::equal(arrays.at("a"), at::tensor({1, 2}, at::kByte)));
}

TEST(LoadNpz, RefusesDamage) {
  EXPECT_THAT(npz_refusal({{"a.npy", kTwoBytes, true, 0, 1}}), HasSubstr("a.npy is damaged: its checksum"));
  EXPECT_THAT(npz_refusal({{"a.npy", kTwoBytes, false, 0, 1}}), HasSubstr("a.npy is damaged: its checksum"));
  EXPECT_THAT(npz_refusal({{"a.npy", kTwoBytes, true, kTwoBytes.size() + 1}}),
              HasSubstr("cannot be decompressed"));
  EXPECT_THAT(npz_refusal({{"a.npy", kTwoBytes, true, kTwoBytes.size() - 1}}),
              HasSubstr("cannot be decompressed"));
  EXPECT_THAT(npz_refusal({{"a.npy", kTwoBytes, true, 4'000'000'000U}}),
              HasSubstr("cannot have 4000000000 bytes"));
  EXPECT_THAT(npz_refusal({{"a.npy", kTwoBytes, false, kTwoBytes.size() + 1}}), HasSubstr("two sizes"));
  EXPECT_THAT(npz_refusal({{"a.npy", "text"}}), HasSubstr("array a: is not a NumPy file"));
}

TEST(NumpyDataset, ReadsPairsOfArrays) {
  const TempFolder folder;
  write_file(folder / "x.npy", npy_bytes(npy_header("|u1", "(2, 2)"), "\1\2\3\4"));
  write_file(folder / "y.npy", kTwoBytes);
  write_file(folder / "z.npy", npy_bytes(npy_header("|u1", "()"), "\1"));
  const NumpyDataset files(folder / "x.npy", folder / "y.npy");
  EXPECT_TRUE(
      at::equal(files.get_batch(at::tensor({1}, at::kLong)).data, torch::tensor({{3, 4}}, at::kByte)));
  EXPECT_THROW(NumpyDataset(folder / "x.npy", folder / "z.npy"), ArgumentError);

  write_file(
      folder / "x.npz",
      zip_bytes({{"x.npy", bytes_of_file(folder / "x.npy")}, {"y.npy", kTwoBytes}, {"bad.npy", "bad"}}));
  const NumpyDataset npz(folder / "x.npz", {.data = "x", .target = "y"});
  EXPECT_TRUE(at::equal(npz.target(), files.target()));
  EXPECT_THAT(error_of<DataError>([&] { NumpyDataset(folder / "x.npz", {.data = "x", .target = "Y"}); }),
              HasSubstr("has no array \"Y\"; its arrays are: bad, x, y"));
}

}  // namespace
}  // namespace lockstep::data
