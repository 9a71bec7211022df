// SPDX-License-Identifier: BSD-3-Clause
#include "launch/secret.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/error_of.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

using launch::Challenges;
using launch::read_secret;
using launch::Secret;
using ::testing::HasSubstr;
using Side = Secret::Side;

constexpr const char* kText = "0123456789abcdef";

TEST(Secret, AcceptsOnlyTheProofOfTheSameSecretSideAndChallenges) {
  const Secret secret(kText);
  const Challenges challenges{.server = "1", .client = "2"};
  const auto proof = secret.proof(Side::client, challenges);
  // printf '%s' 'lockstep run, client: 1 2' | openssl dgst -sha256 -hmac 0123456789abcdef
  EXPECT_EQ(proof, "a76c1da62f38a1cb69857bbe4970f930112f6c89f5743cac4507cea668abfac8");
  EXPECT_TRUE(secret.accepts(proof, Side::client, challenges));
  EXPECT_FALSE(secret.accepts(proof, Side::server, challenges));
  EXPECT_FALSE(secret.accepts(proof, Side::client, {.server = "1", .client = "3"}));
  EXPECT_FALSE(secret.accepts(proof, Side::client, {.server = "3", .client = "2"}));
  EXPECT_FALSE(secret.accepts("", Side::client, challenges));
  EXPECT_FALSE(Secret("0123456789abcdeF").accepts(proof, Side::client, challenges));
  EXPECT_FALSE(Secret().accepts(proof, Side::client, challenges));
  EXPECT_TRUE(Secret().accepts("", Side::client, challenges));
}

TEST(Secret, ComesFromTheFileOrTheEnvironment) {
  const TempFolder folder;
  std::ofstream(folder.file("one")) << kText << "\n";
  std::ofstream(folder.file("short")) << "abc\n";
  const Challenges challenges{.server = "1", .client = "2"};
  const auto expected = Secret(kText).proof(Side::server, challenges);
  const auto proof = [&](const std::string& file, const std::map<std::string, std::string>& variables) {
    return read_secret(file, Env(variables)).proof(Side::server, challenges);
  };
  EXPECT_EQ(proof(folder.file("one"), {{"LOCKSTEP_SECRET", "another secret text"}}), expected);
  EXPECT_EQ(proof("", {{"LOCKSTEP_SECRET_FILE", folder.file("one")}}), expected);
  EXPECT_EQ(proof("", {{"LOCKSTEP_SECRET", kText}}), expected);
  EXPECT_EQ(proof("", {}), "");
  EXPECT_THAT(error_of<ArgumentError>([&] { proof(folder.file("short"), {}); }),
              HasSubstr("short: a secret has at least 16 characters"));
  EXPECT_THAT(error_of<ArgumentError>([&] { proof(folder.file("none"), {}); }),
              HasSubstr("none cannot be read"));
  EXPECT_THAT(error_of<ArgumentError>([&] {
                proof("", {{"LOCKSTEP_SECRET", "abc"}});
              }),
              HasSubstr("LOCKSTEP_SECRET: a secret"));
}

}  // namespace
}  // namespace lockstep::testing
