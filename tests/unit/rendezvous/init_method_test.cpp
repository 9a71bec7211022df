// SPDX-License-Identifier: BSD-3-Clause
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "rendezvous/rank_info.h"

namespace lockstep::rendezvous {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(InitMethod, Kinds) {
  EXPECT_EQ(parse_init_method("").kind, InitMethod::Kind::none);
  EXPECT_EQ(parse_init_method("env://").kind, InitMethod::Kind::env);
  const auto tcp = parse_init_method("tcp://10.0.0.1:29500?rank=3&world_size=8");
  EXPECT_EQ(tcp.kind, InitMethod::Kind::tcp);
  EXPECT_EQ(tcp.host, "10.0.0.1");
  EXPECT_EQ(tcp.port, 29500);
  EXPECT_EQ(tcp.rank, 3);
  EXPECT_EQ(tcp.world_size, 8);
  EXPECT_EQ(parse_init_method("tcp://[::1]:99").host, "::1");
  EXPECT_EQ(parse_init_method("file:///tmp/meeting").path, "/tmp/meeting");
}

TEST(InitMethod, InvalidMethodsAreQuoted) {
  for (const auto* text :
       {"http://x", "tcp://host", "tcp://:1", "tcp://h:0", "tcp://h:99999", "tcp://h:x", "file://relative",
        "file:///folder/", "tcp://h:1?rank=x", "tcp://h:1?size=2", "env"}) {
    EXPECT_THAT([&] { parse_init_method(text); },
                ThrowsMessage<ArgumentError>(HasSubstr(std::string("\"") + text)))
        << text;
  }
}

TEST(InitMethod, ARelativePathIsShownAsAnAbsoluteOne) {
  const auto absolute = "file://" + std::filesystem::absolute("runs/meeting").string();
  EXPECT_THAT([] { parse_init_method("file://runs/meeting"); },
              ThrowsMessage<ArgumentError>(HasSubstr(absolute)));
}

}  // namespace
}  // namespace lockstep::rendezvous
