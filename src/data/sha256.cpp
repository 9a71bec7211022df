// SPDX-License-Identifier: BSD-3-Clause
#include "data/sha256.h"

#include <array>
#include <openssl/evp.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>

namespace lockstep::data {

std::string sha256_hex(std::span<const std::uint8_t> bytes) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int length = 0;
  if (::EVP_Digest(bytes.data(), bytes.size(), digest.data(), &length, ::EVP_sha256(), nullptr) != 1) {
    throw DataError("SHA-256 could not be computed: this machine's OpenSSL does not offer it");
  }
  return fmt::format("{:02x}", fmt::join(digest.begin(), digest.begin() + length, ""));
}

}  // namespace lockstep::data
