// SPDX-License-Identifier: BSD-3-Clause
#include "data/tar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "support/error_of.h"
#include "unit/data/fixtures.h"

namespace lockstep::data {
namespace {

using lockstep::testing::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A header with its checksum, and the contents, filled up.
std::string member(std::string name, char type, const std::string& contents,
                   const std::string& size_field = {}) {
  auto bytes = testing::tar_bytes({{std::move(name), contents}});
  bytes.resize(bytes.size() - 1024);
  bytes[156] = type;
  if (!size_field.empty()) bytes.replace(124, 12, size_field);
  bytes.replace(148, 8, 8, ' ');
  unsigned sum = 0;
  for (std::size_t i = 0; i < 512; ++i) sum += static_cast<unsigned char>(bytes[i]);
  for (std::size_t i = 0; i < 6; ++i, sum /= 8) bytes[148 + 5 - i] = static_cast<char>('0' + sum % 8);
  bytes[154] = '\0';
  return bytes;
}

std::string pax_record(const std::string& key, const std::string& value) {
  const auto rest = key.size() + value.size() + 3;
  const auto length = rest + std::to_string(rest + 2).size();
  return std::to_string(length) + " " + key + "=" + value + "\n";
}

const std::string kEnd(1024, '\0');
const std::string kFile = member("file", '0', "12");

std::vector<TarMember> members_of(const std::string& tar) {
  const std::string name = "x.tar";
  TarReader reader(tar, name);
  std::vector<TarMember> members;
  while (auto next = reader.next()) members.push_back(*std::move(next));
  return members;
}

std::string reader_refusal(const std::string& tar) {
  return error_of<DataError>([&] { members_of(tar); });
}

TEST(TarReader, GivesTheLargeNumbersOfGnuAndPax) {
  const auto base256 = std::string("\x80") + std::string(10, '\0') + '\2';
  for (const auto& tar :
       {member("file", '0', "12", base256),
        member("pax", 'x', pax_record("size", "2")) + member("file", '0', "12", std::string(12, '7'))}) {
    const auto members = members_of(tar + kEnd);
    ASSERT_EQ(members.size(), 1U);
    EXPECT_EQ(members[0].path, "file");
    EXPECT_EQ(members[0].size, 2);
    EXPECT_EQ(members[0].begin, 0);
    EXPECT_EQ(tar.substr(static_cast<std::size_t>(members[0].offset), 2), "12");
  }
}

TEST(TarReader, SizesBeyondTheEndAreCutShort) {
  const std::string largest("\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff", 12);
  for (const auto& tar : {member("file", '0', "12", largest), member("file", '0', "12", std::string(12, '7')),
                          member("pax", 'x', pax_record("size", "9223372036854775807")) + kFile,
                          member("long", 'L', "12", largest)}) {
    EXPECT_THAT(reader_refusal(tar + kEnd), HasSubstr("x.tar: the tar archive is cut short at offset"));
  }
  EXPECT_THAT(reader_refusal(member("file", '0', "12", std::string(12, '\xff')) + kEnd),
              HasSubstr("is not a number"));
  EXPECT_THAT(reader_refusal(member("file", '0', "12", "\x80" + std::string(11, '\xff')) + kEnd),
              HasSubstr("is not a number"));
  EXPECT_THAT(reader_refusal(member("file", '0', "12", "        12x ") + kEnd), HasSubstr("is not a number"));
}

TEST(TarReader, DamagedExtendedHeadersNameTheirOffset) {
  for (const std::string record :
       {"x", "5", "5 ", "5 a=", "9999 path=x\n", "0 path=x\n", "3 path=x\n", "8 path\n", "-9 path=x\n",
        "99999999999999999999999 path=x\n", " path=x\n"}) {
    EXPECT_THAT(reader_refusal(kFile + member("pax", 'x', record) + kFile + kEnd),
                HasSubstr("x.tar: the tar archive is damaged at offset 1024: a record of a pax header"))
        << record;
  }
  EXPECT_THAT(reader_refusal(member("pax", 'x', pax_record("size", "1x")) + kFile + kEnd),
              HasSubstr("offset 0: the size in a pax header"));
  EXPECT_THAT(reader_refusal(kFile + member("long", 'L', "name") + kEnd),
              HasSubstr("offset 2048: a file is missing after its extended header"));
  EXPECT_THAT(reader_refusal(member("long", 'L', std::string((1 << 20) + 1, 'x')) + kFile + kEnd),
              HasSubstr("longer than 1 MiB"));
}

TEST(TarReader, UnsupportedFilesAreNamed) {
  EXPECT_THAT(reader_refusal(member("s", 'S', "12") + kEnd),
              AllOf(HasSubstr("sparse file at offset 0"), HasSubstr("not supported")));
  EXPECT_THAT(reader_refusal(member("p", 'x', pax_record("GNU.sparse.major", "1")) + kFile + kEnd),
              HasSubstr("sparse file at offset 0"));
  for (const std::string key : {"path", "size"}) {
    EXPECT_THAT(reader_refusal(member("g", 'g', pax_record(key, "1")) + kFile + kEnd),
                HasSubstr("a global pax header gives all files one path or size at offset 0"));
  }
  EXPECT_EQ(members_of(member("g", 'g', pax_record("comment", "1")) + kFile + kEnd).size(), 1U);
}

TEST(TarReader, ContinuesAtAMember) {
  const auto tar = kFile + member("long", 'L', "a/very/long/name") + kFile + kEnd;
  const auto all = members_of(tar);
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[1].begin, 1024);
  const std::string name = "x.tar";
  TarReader reader(tar, name, all[1].begin);
  EXPECT_EQ(reader.next()->path, "a/very/long/name");
  EXPECT_FALSE(reader.next());
  EXPECT_EQ(reader.offset(), 3072);
}

}  // namespace
}  // namespace lockstep::data
