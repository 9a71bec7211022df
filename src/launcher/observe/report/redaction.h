// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::observe {

// What stands in the place of a secret.
inline constexpr std::string_view kRedacted = "[redacted]";

// The text without what looks like a secret: the values of names such as --token, --password, api_key and *_SECRET,
// the passwords of URLs, what follows "Bearer", and keys of known forms (ghp_..., sk-..., AKIA...). Lines of source
// files (token.cpp:42) and members of classes (Token::next) stay.
std::string redacted(std::string_view text);

// The text with "~" for the folder `home`, whose name tells who the user is; "" and "/" are none.
std::string without_home(std::string_view text, std::string_view home);

// A command line, word by word, without secrets. A secret may be the word after its name.
std::vector<std::string> redacted_words(const std::vector<std::string>& words);

// Of variables NAME=VALUE those that a report may show, sorted, redacted: how ranks find each other, threads, devices,
// and settings of Lockstep, PyTorch, NCCL, Gloo, MPI and SLURM. All others are left out, and SLURM's of user and account.
std::vector<std::pair<std::string, std::string>> shown_variables(const std::vector<std::string>& variables);

}  // namespace lockstep::observe
