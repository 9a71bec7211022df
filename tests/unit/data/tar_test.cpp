// SPDX-License-Identifier: BSD-3-Clause
#include "data/tar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "fixtures.h"

namespace lockstep::data {
namespace {

using namespace testing;  // NOLINT: the fixtures
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::vector<TarEntry> read(const std::string& bytes) {
  return read_tar({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()}, "the archive");
}

void expect_refused(const std::string& bytes, const std::string& why) {
  EXPECT_THAT([&] { read(bytes); }, ThrowsMessage<DataError>(HasSubstr(why)));
}

TEST(Tar, ReadsFilesOfAnySize) {
  const std::string large(1500, 'y');
  const auto bytes = tar_bytes({{"a/empty", ""}, {"a/block", std::string(512, 'x')}, {"b", large}});
  const auto entries = read(bytes);
  ASSERT_EQ(entries.size(), 3U);
  EXPECT_EQ(entries[0].name, "a/empty");
  EXPECT_TRUE(entries[0].contents.empty());
  EXPECT_EQ(entries[1].contents.size(), 512U);
  EXPECT_EQ(std::string(entries[2].contents.begin(), entries[2].contents.end()), large);
}

TEST(Tar, RefusesWhatIsNoTarArchive) { expect_refused(std::string(2048, 'z'), "is not a tar archive"); }

TEST(Tar, RefusesADamagedHeader) {
  auto bytes = tar_bytes({{"name", "contents"}});
  bytes[2] ^= 1;
  expect_refused(bytes, "damaged");
}

TEST(Tar, RefusesAnArchiveThatIsCutShort) {
  const auto bytes = tar_bytes({{"name", std::string(1000, 'x')}});
  expect_refused(bytes.substr(0, 1024), "cut short in name");
  expect_refused(bytes.substr(0, 300), "cut short");
  expect_refused("", "cut short");
}

TEST(Tar, AnArchiveWithoutFilesIsEmpty) { EXPECT_TRUE(read(tar_bytes({})).empty()); }

}  // namespace
}  // namespace lockstep::data
