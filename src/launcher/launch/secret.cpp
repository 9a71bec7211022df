// SPDX-License-Identifier: BSD-3-Clause
#include "launch/secret.h"

#include <array>
#include <fstream>
#include <iterator>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/text.h"
#include "base/throw_error.h"

namespace lockstep::launch {
namespace {

constexpr std::size_t kLeastLength = 16;
constexpr const char* kWhiteSpace = " \t\r\n";

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(kWhiteSpace);
  if (first == std::string::npos) return {};
  return text.substr(first, text.find_last_not_of(kWhiteSpace) + 1 - first);
}

bool equal_in_constant_time(std::string_view one, std::string_view other) {
  return one.size() == other.size() && ::CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0;
}

Secret secret_from(const std::string& source, const std::string& text) {
  try {
    return Secret(trimmed(text));
  } catch (const ArgumentError& error) {
    throw_error<ArgumentError>("{}: {}", source, error.what());
  }
}

}  // namespace

std::string random_challenge() { return random_hex(8); }

Secret::Secret(std::string text) : text_(std::move(text)) {
  if (text_.size() < kLeastLength) {
    throw_error<ArgumentError>("a secret has at least {} characters; `openssl rand -hex 32` makes one",
                               kLeastLength);
  }
}

std::string Secret::proof(Side side, const Challenges& challenges) const {
  if (empty()) return {};
  const auto message = fmt::format("lockstep run, {}: {} {}", side == Side::server ? "server" : "client",
                                   challenges.server, challenges.client);
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned int size = 0;
  const auto* const done =
      ::HMAC(::EVP_sha256(), text_.data(), static_cast<int>(text_.size()),
             reinterpret_cast<const unsigned char*>(message.data()), message.size(), digest.data(), &size);
  if (done == nullptr) throw LaunchError("OpenSSL cannot compute HMAC-SHA-256");
  return fmt::format("{:02x}", fmt::join(digest.begin(), digest.begin() + size, ""));
}

bool Secret::accepts(std::string_view proof, Side side, const Challenges& challenges) const {
  return equal_in_constant_time(proof, this->proof(side, challenges));
}

bool Secret::is(std::string_view text) const { return equal_in_constant_time(text, text_); }

Secret secret_in(const std::string& source, const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(stream), {});
  if (!stream.is_open() || stream.bad()) {
    throw_error<ArgumentError>("{}: {} cannot be read; name a file that this user can read", source, file);
  }
  return secret_from(fmt::format("{}: {}", source, file), text);
}

Secret read_secret(const std::string& file, const Env& env) {
  if (!file.empty()) return secret_in("--secret-file", file);
  if (const auto named = env.get("LOCKSTEP_SECRET_FILE")) return secret_in("LOCKSTEP_SECRET_FILE", *named);
  if (const auto text = env.get("LOCKSTEP_SECRET")) return secret_from("LOCKSTEP_SECRET", *text);
  return {};
}

}  // namespace lockstep::launch
