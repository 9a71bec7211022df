// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <string_view>

#include "base/env.h"

namespace lockstep::launch {

// Random texts, one of each side, so that no proof can be used twice.
struct Challenges {
  std::string server{};
  std::string client{};
};

std::string random_challenge();

// The secret of a run, the same on all nodes. Each side of a connection proves that it knows the secret, with
// HMAC-SHA-256 over both challenges. The secret itself is never sent. Later messages are neither encrypted
// nor signed.
class Secret {
 public:
  enum class Side { server, client };

  Secret() = default;  // none: proofs are empty, and a side accepts any other without a secret
  // Throws ArgumentError for less than 16 characters.
  explicit Secret(std::string text);

  bool empty() const { return text_.empty(); }
  const std::string& text() const { return text_; }
  // Whether `text` is the secret. Takes as long for every text of one length.
  bool is(std::string_view text) const;
  // Hexadecimal digits.
  std::string proof(Side side, const Challenges& challenges) const;
  bool accepts(std::string_view proof, Side side, const Challenges& challenges) const;

 private:
  std::string text_;
};

// The contents of `file`, without white space at its ends. Throws ArgumentError naming `source` when it cannot
// be read or is too short.
Secret secret_in(const std::string& source, const std::string& file);

// The contents of `file` if it is given, else of the file that LOCKSTEP_SECRET_FILE names, else
// LOCKSTEP_SECRET. Without white space at its ends. Throws ArgumentError naming the source when it cannot be
// read or is too short.
Secret read_secret(const std::string& file, const Env& env);

}  // namespace lockstep::launch
