// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <string_view>

#include <ATen/ops/tensor.h>

#include <lockstep/data/images.h>
#include <lockstep/data/modelnet.h>

#include "base/throw_error.h"
#include "data/bytes.h"

namespace lockstep::data {
namespace {

constexpr std::string_view kBlanks = " \t\r\v\f";
constexpr std::size_t kMostShown = 40;   // characters of a word in a message
constexpr double kLeastVertexBytes = 6;  // "0 0 0\n"
constexpr double kLeastFaceBytes = 2;    // "1\n"

// The lines of an OFF file that have words, word by word.
class OffLines {
 public:
  OffLines(std::string_view text, const std::string& file) : left_(text), file_(file) {}

  void next_line(std::string_view expected) {
    do {
      if (left_.empty()) throw_error<DataError>("{}: ends where {} should follow", file_, expected);
      const auto line = left_.substr(0, left_.find('\n'));
      left_.remove_prefix(std::min(line.size() + 1, left_.size()));
      words_ = line.substr(0, line.find('#'));
      ++number_;
      skip_blanks();
    } while (words_.empty());
  }

  bool at_line_end() const { return words_.empty(); }
  std::size_t bytes_left() const { return left_.size(); }

  // Removes `start` from the line if the line begins with it.
  bool skip(std::string_view start) {
    if (!words_.starts_with(start)) return false;
    words_.remove_prefix(start.size());
    skip_blanks();
    return true;
  }

  float coordinate() {
    const auto value = number<double>("a coordinate");
    if (!(std::abs(value) <= std::numeric_limits<float>::max())) {
      fail(fmt::format("the coordinate {} is not a number within float32", value));
    }
    return static_cast<float>(value);
  }

  std::int64_t integer(std::string_view what, std::int64_t end) {
    const auto value = number<std::int64_t>(what);
    if (value < 0 || value >= end)
      fail(fmt::format("{} is {}; it should be in 0 .. {}", what, value, end - 1));
    return value;
  }

  [[noreturn]] void fail(std::string_view problem) const {
    throw_error<DataError>("{}: line {}: {}", file_, number_, problem);
  }

 private:
  void skip_blanks() { words_.remove_prefix(std::min(words_.find_first_not_of(kBlanks), words_.size())); }

  template <typename Number>
  Number number(std::string_view what) {
    const auto word = words_.substr(0, words_.find_first_of(kBlanks));
    if (word.empty()) fail(fmt::format("{} is missing", what));
    words_.remove_prefix(word.size());
    skip_blanks();
    const auto digits = word.substr(word.starts_with('+') && word.size() > 1 && word[1] != '-' ? 1 : 0);
    Number value{};
    const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (code != std::errc() || end != digits.data() + digits.size()) {
      fail(fmt::format("\"{}\" is not {}", word.substr(0, kMostShown), what));
    }
    return value;
  }

  std::string_view left_;
  const std::string& file_;
  std::string_view words_{};
  std::int64_t number_ = 0;
};

struct OffCounts {
  std::int64_t vertices;
  std::int64_t faces;
};

OffCounts read_counts(OffLines& lines) {
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  lines.next_line("the header OFF");
  if (!lines.skip("OFF"))
    lines.fail("the header is not OFF; variants such as COFF and NOFF are not supported");
  if (lines.at_line_end()) lines.next_line("the number of vertices");
  const auto vertices = lines.integer("the number of vertices", kMost);
  const auto faces = lines.integer("the number of faces", kMost);
  // The last line may end without a line break.
  const auto bytes = static_cast<double>(lines.bytes_left()) + 1;
  if (static_cast<double>(vertices) * kLeastVertexBytes + static_cast<double>(faces) * kLeastFaceBytes >
      bytes) {
    lines.fail(
        fmt::format("the header states {} vertices and {} faces, more than the {} bytes after it can hold",
                    vertices, faces, lines.bytes_left()));
  }
  return {.vertices = vertices, .faces = faces};
}

std::vector<float> read_vertices(OffLines& lines, std::int64_t count) {
  std::vector<float> vertices;
  vertices.reserve(static_cast<std::size_t>(3 * count));
  for (std::int64_t i = 0; i < count; ++i) {
    lines.next_line(fmt::format("vertex {} of {}", i, count));
    for (int axis = 0; axis < 3; ++axis) vertices.push_back(lines.coordinate());
    if (!lines.at_line_end()) lines.fail("a vertex should have 3 coordinates");
  }
  return vertices;
}

std::vector<std::int64_t> read_triangles(OffLines& lines, const OffCounts& counts) {
  std::vector<std::int64_t> triangles;
  triangles.reserve(static_cast<std::size_t>(3 * counts.faces));
  for (std::int64_t i = 0; i < counts.faces; ++i) {
    lines.next_line(fmt::format("face {} of {}", i, counts.faces));
    const auto corners = lines.integer("the number of vertices of a face", std::numeric_limits<int>::max());
    std::int64_t first = 0;
    std::int64_t previous = 0;
    for (std::int64_t k = 0; k < corners; ++k) {
      const auto corner = lines.integer("the vertex of a face", counts.vertices);
      if (k == 0) first = corner;
      if (k >= 2) triangles.insert(triangles.end(), {first, previous, corner});
      previous = corner;
    }
  }
  return triangles;
}

}  // namespace

Mesh read_off(const std::filesystem::path& file) {
  const auto name = file.string();
  const auto bytes = read_file(file);
  const auto span = as_bytes(bytes);
  OffLines lines({reinterpret_cast<const char*>(span.data()), span.size()}, name);
  const auto counts = read_counts(lines);
  const auto vertices = read_vertices(lines, counts.vertices);
  const auto triangles = read_triangles(lines, counts);
  return {.vertices = at::tensor(vertices, at::kFloat).view({-1, 3}),
          .triangles = at::tensor(triangles, at::kLong).view({-1, 3})};
}

}  // namespace lockstep::data
