// SPDX-License-Identifier: BSD-3-Clause
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/data/vision.h>

#include "unit/data/fixtures.h"

namespace lockstep::data {
namespace {

using namespace testing;  // NOLINT: the fixtures
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class Idx : public ::testing::Test {
 protected:
  void expect_refused(const std::string& bytes, const std::string& why) {
    write_file(folder_ / "some-file", bytes);
    EXPECT_THAT([this] { read_idx(folder_ / "some-file"); },
                ThrowsMessage<DataError>(AllOf(HasSubstr((folder_ / "some-file").string()), HasSubstr(why))));
  }
  TempFolder folder_;
};

TEST_F(Idx, ReadsPlainAndGzip) {
  const auto expected = at::tensor({0, 1, 2, 3, 4, 5, 6, 7, 16, 32, 127, 255}, at::kByte).view({2, 2, 3});
  write_file(folder_ / "plain", tiny_images());
  write_gzip(folder_ / "gzip", tiny_images());
  EXPECT_TRUE(at::equal(read_idx(folder_ / "plain"), expected));
  EXPECT_TRUE(at::equal(read_idx(folder_ / "gzip"), expected));
}

TEST_F(Idx, ReadsALargeGzip) {
  const std::string values(3'000'000, 'x');
  write_gzip(folder_ / "large", idx_bytes({3, 1000, 1000}, values));
  EXPECT_TRUE(at::equal(read_idx(folder_ / "large"), at::full({3, 1000, 1000}, 'x', at::kByte)));
}

TEST_F(Idx, ReadsGzipOfSeveralMembers) {
  write_gzip(folder_ / "one", tiny_images().substr(0, 9));
  write_gzip(folder_ / "two", tiny_images().substr(9));
  write_file(folder_ / "both", bytes_of_file(folder_ / "one") + bytes_of_file(folder_ / "two"));
  EXPECT_EQ(read_idx(folder_ / "both").numel(), 12);
}

TEST_F(Idx, ReadsEveryTypeFromBigEndian) {
  const auto file = [this](char type, const std::string& values) {
    std::string bytes = idx_bytes({1}, values);
    bytes[2] = type;
    write_file(folder_ / "typed", bytes);
    return read_idx(folder_ / "typed");
  };
  EXPECT_TRUE(at::equal(file('\x09', "\xff"), at::tensor({-1}, at::kChar)));
  EXPECT_TRUE(at::equal(file('\x0b', std::string("\1\2", 2)), at::tensor({258}, at::kShort)));
  EXPECT_TRUE(at::equal(file('\x0c', std::string("\0\1\0\2", 4)), at::tensor({65538}, at::kInt)));
  EXPECT_TRUE(at::equal(file('\x0d', std::string("\x3f\xc0\0\0", 4)), at::tensor({1.5}, at::kFloat)));
  EXPECT_TRUE(
      at::equal(file('\x0e', std::string("\x3f\xf8\0\0\0\0\0\0", 8)), at::tensor({1.5}, at::kDouble)));
}

TEST_F(Idx, NamesAMissingFile) {
  EXPECT_THAT([this] { read_idx(folder_ / "nothing"); },
              ThrowsMessage<DataError>(AllOf(HasSubstr("nothing"), HasSubstr("No such file"))));
  EXPECT_THAT([this] { read_idx(folder_.path()); },
              ThrowsMessage<DataError>(HasSubstr("not a regular file")));
}

TEST_F(Idx, RejectsAnInvalidHeader) {
  expect_refused("", "not an IDX file");
  expect_refused("<html>not found</html>", "not an IDX file");
  expect_refused(std::string("\0\0\x07\1\0\0\0\1x", 9), "not an IDX file");
  expect_refused(std::string("\0\0\x08\0", 4), "not an IDX file");
  expect_refused(tiny_images().substr(0, 10), "cut short in its header");
  expect_refused(idx_bytes({0xffffffff, 0xffffffff, 0xffffffff}, "x"), "too large");
  expect_refused(idx_bytes({0, 0xffffffff, 0xffffffff, 0xffffffff}, ""), "too large");
}

TEST_F(Idx, RejectsAWrongSize) {
  expect_refused(tiny_images().substr(0, 20), "is cut short");
  expect_refused(tiny_images() + "x", "too many bytes");
}

TEST_F(Idx, IgnoresBytesAfterGzipDataAsGzipDoes) {
  write_gzip(folder_ / "good", tiny_images());
  write_file(folder_ / "longer", bytes_of_file(folder_ / "good") + "rubbish");
  EXPECT_EQ(read_idx(folder_ / "longer").numel(), 12);
}

TEST_F(Idx, RejectsDamagedGzip) {
  write_gzip(folder_ / "good", tiny_images());
  const auto good = bytes_of_file(folder_ / "good");
  expect_refused(good.substr(0, good.size() / 2), "cut short");
  expect_refused(good.substr(0, 2), "cut short");
  auto damaged = good;
  damaged[damaged.size() - 8] ^= 1;  // in the checksum
  expect_refused(damaged, "is damaged");
}

}  // namespace
}  // namespace lockstep::data
