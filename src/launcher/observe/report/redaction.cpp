// SPDX-License-Identifier: BSD-3-Clause
#include "observe/report/redaction.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>

namespace lockstep::observe {
namespace {

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.';
}
bool is_space(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }
bool is_quote(char c) { return c == '"' || c == '\''; }

char lower(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }

std::string lowered(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), lower);
  return result;
}

// The parts of a name: of "--hfAuth_token" "hf", "auth" and "token".
std::vector<std::string> parts_of(std::string_view name) {
  std::vector<std::string> parts(1);
  for (std::size_t i = 0; i < name.size(); ++i) {
    const auto c = static_cast<unsigned char>(name[i]);
    const bool begins =
        std::isupper(c) != 0 && i > 0 && std::islower(static_cast<unsigned char>(name[i - 1])) != 0;
    if (begins || std::isalnum(c) == 0) parts.emplace_back();
    if (std::isalnum(c) != 0) parts.back() += lower(name[i]);
  }
  std::erase(parts, "");
  return parts;
}

bool is_among(const std::string& text, const auto& list) {
  return std::ranges::find(list, text) != list.end();
}

// Whether a value of this name is a secret. The path of a file with one is none.
bool is_secret_name(std::string_view name) {
  static constexpr std::array<std::string_view, 17> kSecrets{
      "password",   "passwd",      "pass",          "pwd",      "passphrase", "secret",
      "secrets",    "token",       "apikey",        "apitoken", "auth",       "bearer",
      "credential", "credentials", "authorization", "cookie",   "jwt"};
  static constexpr std::array<std::string_view, 10> kOfKeys{
      "api", "access", "private", "secret", "auth", "signing", "encryption", "license", "account", "ssh"};
  static constexpr std::array<std::string_view, 4> kPaths{"file", "path", "dir", "folder"};
  const auto parts = parts_of(name);
  if (parts.empty() || is_among(parts.back(), kPaths)) return false;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (is_among(parts[i], kSecrets)) return true;
    if (i > 0 && (parts[i] == "key" || parts[i] == "keys") && is_among(parts[i - 1], kOfKeys)) return true;
  }
  const auto whole = lowered(name);
  return whole.ends_with("password") || whole.ends_with("passwd") || whole.ends_with("apikey") ||
         whole.ends_with("secret") || whole.ends_with("accesskey");
}

// Where a name that ends before `end` begins.
std::size_t begin_of_name(std::string_view text, std::size_t end) {
  while (end > 0 && is_word(text[end - 1])) --end;
  return end;
}

// The end of a value: that of its quotes, or of its word.
std::size_t end_of_value(std::string_view text, std::size_t begin) {
  if (begin < text.size() && is_quote(text[begin])) {
    const auto end = text.find(text[begin], begin + 1);
    return end == std::string_view::npos ? text.size() : end;
  }
  const auto end = text.find_first_of(" \t\r\n\"',;&", begin);
  return end == std::string_view::npos ? text.size() : end;
}

struct Range {
  std::size_t begin = 0;
  std::size_t end = 0;
};

bool is_source_file(std::string_view name) {
  static constexpr std::array<std::string_view, 16> kExtensions{".c",   ".cc",  ".cpp", ".cxx", ".h",  ".hh",
                                                                ".hpp", ".hxx", ".inl", ".ipp", ".cu", ".cuh",
                                                                ".py",  ".pyx", ".rs",  ".go"};
  return std::ranges::any_of(kExtensions, [&](auto extension) { return name.ends_with(extension); });
}

bool begins_with_a_number(std::string_view text) {
  const auto end = text.find_first_not_of("0123456789");
  if (end == std::string_view::npos) return !text.empty();
  return end > 0 && std::isalpha(static_cast<unsigned char>(text[end])) == 0 && text[end] != '_';
}

// Whether the ':' at `at` belongs to "Name::member" or, behind `name`, to "file.cpp:42".
bool is_place(std::string_view text, std::size_t at, std::string_view name) {
  const auto rest = text.substr(at + 1);
  return rest.starts_with(':') || (is_source_file(name) && begins_with_a_number(rest));
}

// The value of a secret name that ends at `at`, at '=' or ':', or at the space behind "--name".
std::optional<Range> named_value(std::string_view text, std::size_t at) {
  const bool is_quoted = at > 0 && is_quote(text[at - 1]);
  const auto end = is_quoted ? at - 1 : at;
  const auto begin = begin_of_name(text, end);
  const bool is_option = begin < end && text[begin] == '-';
  if (begin == end || (is_space(text[at]) && !is_option)) return std::nullopt;
  const auto name = text.substr(begin, end - begin);
  if (!is_secret_name(name) || (text[at] == ':' && is_place(text, at, name))) return std::nullopt;
  auto value = at + 1;
  while (value < text.size() && is_space(text[value]) && text[at] != '=') ++value;
  if (is_space(text[at]) && value < text.size() && text[value] == '-') return std::nullopt;  // another option
  // Before a quote that opens the value.
  const auto stop = end_of_value(text, value);
  if (value < text.size() && is_quote(text[value])) ++value;
  return Range{value, stop};
}

// The password of "scheme://user:password@host", whose "://" is at `at`.
std::optional<Range> url_password(std::string_view text, std::size_t at) {
  if (text.substr(at, 3) != "://") return std::nullopt;
  const auto begin = at + 3;
  const auto host = text.substr(begin, text.find_first_of(" \t\r\n\"'/?#", begin) - begin);
  const auto sign = host.rfind('@');
  if (sign == std::string_view::npos || sign == 0) return std::nullopt;
  const auto colon = host.find(':');
  return Range{begin + (colon < sign ? colon + 1 : 0), begin + sign};
}

// A key with well-known first letters.
std::optional<Range> known_key(std::string_view text, std::size_t at) {
  static constexpr std::array<std::string_view, 14> kKeys{"ghp_",  "gho_",  "ghs_", "github_pat_", "glpat-",
                                                          "hf_",   "sk-",   "AKIA", "ASIA",        "AIza",
                                                          "xoxb-", "xoxp-", "eyJ",  "npm_"};
  constexpr std::size_t kShortest = 16;
  if (at > 0 && is_word(text[at - 1])) return std::nullopt;
  auto end = at;
  while (end < text.size() && is_word(text[end])) ++end;
  const auto word = text.substr(at, end - at);
  const bool is_key = word.size() >= kShortest &&
                      std::ranges::any_of(kKeys, [&](auto begin) { return word.starts_with(begin); });
  return is_key ? std::optional(Range{at, end}) : std::nullopt;
}

std::optional<Range> bearer(std::string_view text, std::size_t at) {
  constexpr std::string_view kBearer = "bearer ";
  if (lowered(text.substr(at, kBearer.size())) != kBearer) return std::nullopt;
  return Range{at + kBearer.size(), end_of_value(text, at + kBearer.size())};
}

std::optional<Range> secret_at(std::string_view text, std::size_t at) {
  if (auto found = bearer(text, at)) return found;
  if (auto found = url_password(text, at)) return found;
  if (text[at] == '=' || text[at] == ':' || is_space(text[at])) return named_value(text, at);
  return known_key(text, at);
}

}  // namespace

std::string redacted(std::string_view text) {
  std::string result;
  std::size_t copied = 0;
  for (std::size_t at = 0; at < text.size();) {
    const auto secret = secret_at(text, at);
    if (!secret || secret->end <= secret->begin || secret->begin < copied) {
      ++at;
      continue;
    }
    result.append(text, copied, secret->begin - copied);
    // "Authorization: Bearer xyz" has two words.
    const auto value = text.substr(secret->begin);
    const bool has_scheme =
        lowered(value.substr(0, 7)) == "bearer " || lowered(value.substr(0, 6)) == "basic ";
    copied = has_scheme ? end_of_value(text, secret->begin + value.find(' ') + 1) : secret->end;
    result += kRedacted;
    at = copied;
  }
  return result.append(text, copied);
}

std::string without_home(std::string_view text, std::string_view home) {
  while (home.ends_with('/')) home.remove_suffix(1);
  if (home.empty()) return std::string(text);
  std::string result;
  std::size_t copied = 0;
  for (auto at = text.find(home); at != std::string_view::npos; at = text.find(home, at + home.size())) {
    const auto end = at + home.size();
    const auto begin = begin_of_name(text, at);
    const bool begins = begin == at || text[begin] == '-';  // as in -I/home/me
    if (!begins || (end < text.size() && is_word(text[end]))) continue;
    result.append(text, copied, at - copied) += '~';
    copied = end;
  }
  return result.append(text, copied);
}

std::vector<std::string> redacted_words(const std::vector<std::string>& words) {
  std::vector<std::string> result;
  bool is_secret = false;  // the word before names it
  for (const auto& word : words) {
    const auto equals = word.find('=');
    const bool is_option = word.starts_with('-');
    if (is_secret && !is_option) {
      result.emplace_back(kRedacted);
    } else if (equals != std::string::npos && is_secret_name(word.substr(0, equals)) &&
               std::ranges::all_of(word.substr(0, equals), is_word)) {
      result.push_back(word.substr(0, equals + 1) + std::string(kRedacted));
    } else {
      result.push_back(redacted(word));
    }
    is_secret = is_option && equals == std::string::npos && is_secret_name(word);
  }
  return result;
}

std::vector<std::pair<std::string, std::string>> shown_variables(const std::vector<std::string>& variables) {
  static constexpr std::array<std::string_view, 9> kNames{
      "MASTER_ADDR",      "MASTER_PORT", "WORLD_SIZE",      "RANK",      "LOCAL_RANK",
      "LOCAL_WORLD_SIZE", "LD_PRELOAD",  "LD_LIBRARY_PATH", "PYTHONPATH"};
  static constexpr std::array<std::string_view, 16> kBeginnings{
      "LOCKSTEP_", "PET_",  "TORCHELASTIC_", "OMP_",     "KMP_",      "GOMP_",  "MKL_",   "NCCL_",
      "GLOO_",     "CUDA_", "TORCH_",        "PYTORCH_", "OMPI_MCA_", "MPICH_", "SLURM_", "MALLOC_"};
  // They tell who the user is.
  static constexpr std::array<std::string_view, 5> kOfUsers{
      "SLURM_JOB_USER", "SLURM_JOB_UID", "SLURM_JOB_GID", "SLURM_JOB_ACCOUNT", "SLURM_ACCOUNT"};
  std::vector<std::pair<std::string, std::string>> shown;
  for (const auto& variable : variables) {
    const auto equals = variable.find('=');
    if (equals == std::string::npos) continue;
    const auto name = variable.substr(0, equals);
    const bool is_allowed = is_among(name, kNames) || std::ranges::any_of(kBeginnings, [&](auto begin) {
                              return name.starts_with(begin);
                            });
    if (!is_allowed || is_among(name, kOfUsers)) continue;
    shown.emplace_back(name,
                       is_secret_name(name) ? std::string(kRedacted) : redacted(variable.substr(equals + 1)));
  }
  std::ranges::sort(shown);
  return shown;
}

}  // namespace lockstep::observe
