// SPDX-License-Identifier: BSD-3-Clause
#include "base/caller_place.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace lockstep {
namespace {

constexpr std::string_view kThisFile = "src/foundation/base/caller_place.cpp";

// The folder of our sources as the compiler saw it, with a "/" at its end; empty for a path relative to it.
// This file itself, in which no other is, if the compiler renames it (-fmacro-prefix-map).
constexpr std::string_view root() {
  const std::string_view file = __FILE__;
  return file.ends_with(kThisFile) ? file.substr(0, file.size() - kThisFile.size()) : file;
}

// A program may have been compiled in a folder of the same name, so that only folders of ours count.
bool is_in_our_sources(std::string_view file) {
  constexpr std::array<std::string_view, 9> kFolders{
      "src/foundation/", "src/launcher/", "src/tensors/",      "src/communication/", "src/parallel/",
      "src/kit/",        "python/module", "include/lockstep/", "tools/lockstep"};
  if (!file.starts_with(root())) return false;
  file.remove_prefix(root().size());
  return std::ranges::any_of(kFolders, [&](auto folder) { return file.starts_with(folder); });
}

std::string_view base_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

// ".cpp:42" and the like.
bool names_line(std::string_view text) {
  constexpr std::array<std::string_view, 12> kEndings{".cpp", ".cc",  ".cxx", ".cu",  ".h",   ".hpp",
                                                      ".hxx", ".cuh", ".hh",  ".c++", ".inl", ".ipp"};
  for (auto at = text.find(':'); at != std::string_view::npos; at = text.find(':', at + 1)) {
    const bool has_number =
        at + 1 < text.size() && std::isdigit(static_cast<unsigned char>(text[at + 1])) != 0;
    const auto before = text.substr(0, at);
    if (has_number && std::ranges::any_of(kEndings, [&](auto ending) { return before.ends_with(ending); }))
      return true;
  }
  return false;
}

bool is_line_of_program(const std::source_location& where) {
  return where.line() != 0 && is_file_of_program(where.file_name());
}

}  // namespace

bool is_file_of_program(std::string_view file) {
  constexpr std::array<std::string_view, 3> kHeaders{"/include/c++/", "/include/lockstep/", "/torch/csrc/"};
  const bool is_header =
      std::ranges::any_of(kHeaders, [&](auto folder) { return file.find(folder) != std::string_view::npos; });
  return !file.empty() && !is_header && !is_in_our_sources(file);
}

std::string line_text(const std::source_location& where) {
  if (!is_line_of_program(where)) return "";
  return std::string(base_name(where.file_name())) + ":" + std::to_string(where.line());
}

std::string made_at(const std::source_location& where) {
  const auto line = line_text(where);
  return line.empty() ? "" : ", made at " + line;
}

std::string line_prefix(const std::source_location& where) {
  const auto line = line_text(where);
  return line.empty() ? "" : line + ": ";
}

std::string with_line(const std::string& text, const std::source_location& where) {
  const auto line = line_text(where);
  if (line.empty() || text.find(line) != std::string::npos || names_line(text)) return text;
  auto end = std::min(text.find('\n'), text.size());
  if (end < text.size() && end > 0 && text[end - 1] == ':') --end;
  return text.substr(0, end) + " (at " + line + ")" + text.substr(end);
}

std::source_location CallerPlace::current() {
  for (const auto* place = innermost_; place != nullptr; place = place->outer_) {
    if (is_line_of_program(place->where_)) return place->where_;
  }
  return {};
}

}  // namespace lockstep
