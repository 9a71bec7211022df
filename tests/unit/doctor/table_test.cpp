// SPDX-License-Identifier: BSD-3-Clause
#include "doctor/table.h"

#include <gtest/gtest.h>

namespace lockstep::doctor {
namespace {

Table sample() {
  Table table({{.title = "A"}, {.title = "NAME", .may_shorten = true}, {.title = "N", .right = true}});
  table.add({"x", "a name of some length", "5"});
  table.add_note("a note");
  table.add({"yy", "b", "100"});
  return table;
}

TEST(Table, AlignsItsColumns) {
  EXPECT_EQ(sample().text(std::nullopt),
            "A   NAME                     N\n"
            "x   a name of some length    5\n"
            "    a note\n"
            "yy  b                      100\n");
}

TEST(Table, ShortensTheShrinkableColumn) {
  EXPECT_EQ(sample().text(19),
            "A   NAME          N\n"
            "x   a name ...    5\n"
            "    a note\n"
            "yy  b           100\n");
  EXPECT_EQ(sample().text(5), "A ...\nx ...\n  ...\nyy...\n");
}

TEST(Table, CountsCharactersNotBytes) {
  EXPECT_EQ(shortened("\xc3\xa4\xc3\xb6\xc3\xbc\xc3\x9f", 4), "\xc3\xa4\xc3\xb6\xc3\xbc\xc3\x9f");
  EXPECT_EQ(shortened("\xc3\xa4\xc3\xb6\xc3\xbc\xc3\x9f!", 4), "\xc3\xa4...");
}

TEST(BytesText, HasAUnit) {
  EXPECT_EQ(bytes_text(std::nullopt), "-");
  EXPECT_EQ(bytes_text(512), "512 B");
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
  EXPECT_EQ(bytes_text(std::uint64_t{5} << 40), "5.0 TiB");
}

}  // namespace
}  // namespace lockstep::doctor
