// SPDX-License-Identifier: BSD-3-Clause
#include "data/shards.h"

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <optional>
#include <set>
#include <sys/stat.h>
#include <utility>

#include "base/text.h"
#include "base/throw_error.h"
#include "data/bytes.h"
#include "data/index_file.h"
#include "data/tar.h"

namespace lockstep::data {
namespace {

constexpr std::size_t kMostNames = 1'000'000;

using Names = std::vector<std::string>;

void check_count(std::uint64_t count, std::string_view pattern) {
  if (count <= kMostNames) return;
  throw_error<ArgumentError>("{}: the braces stand for more than {} names", pattern, kMostNames);
}

// The position of the next `wanted` outside of braces; the size of the text without one.
std::size_t find_outside_braces(std::string_view text, char wanted, std::size_t from) {
  int depth = 0;
  for (auto at = from; at < text.size(); ++at) {
    if (depth == 0 && text[at] == wanted) return at;
    if (text[at] == '{') ++depth;
    if (text[at] == '}') --depth;
    if (depth < 0) break;
  }
  if (depth != 0) throw_error<ArgumentError>("{}: a brace has no partner", text);
  return text.size();
}

struct RangeEnd {
  std::int64_t value;
  std::string_view text;

  bool is_padded() const {
    return text != "0" && text != "-0" && (text.starts_with('0') || text.starts_with("-0"));
  }
};

// The number that all of the text is.
std::optional<RangeEnd> parse_end(std::string_view text) {
  const auto value = parse_number<std::int64_t>(text);
  return value ? std::optional(RangeEnd{.value = *value, .text = text}) : std::nullopt;
}

// "first..last" or "first..last..step"; nullopt when the text is no range.
std::optional<Names> expand_range(std::string_view text) {
  constexpr std::string_view kDots = "..";
  const auto middle = text.find(kDots);
  if (middle == std::string_view::npos) return std::nullopt;
  auto rest = text.substr(middle + kDots.size());
  const auto second = std::min(rest.find(kDots), rest.size());
  const auto first = parse_end(text.substr(0, middle));
  const auto last = parse_end(rest.substr(0, second));
  rest.remove_prefix(second);
  const auto step = rest.empty() ? RangeEnd{.value = 1, .text = {}} : parse_end(rest.substr(kDots.size()));
  if (!first || !last || !step) return std::nullopt;

  const bool rising = first->value < last->value;
  const auto low = static_cast<std::uint64_t>(rising ? first->value : last->value);
  const auto high = static_cast<std::uint64_t>(rising ? last->value : first->value);
  const auto stride = step->value < 0 ? -static_cast<std::uint64_t>(step->value)
                                      : std::max<std::uint64_t>(static_cast<std::uint64_t>(step->value), 1);
  check_count((high - low) / stride, text);
  const auto width =
      first->is_padded() || last->is_padded() ? std::max(first->text.size(), last->text.size()) : 0;
  Names names;
  for (std::uint64_t i = 0; i <= (high - low) / stride; ++i) {
    const auto value = static_cast<std::int64_t>(rising ? low + i * stride : high - i * stride);
    names.push_back(fmt::format("{:0{}}", value, width));
  }
  return names;
}

// Each of the first followed by each of the second.
Names product(const Names& first, const Names& second, std::string_view pattern) {
  check_count(std::uint64_t{first.size()} * second.size(), pattern);
  Names all;
  for (const auto& begin : first) {
    for (const auto& end : second) all.push_back(begin + end);
  }
  return all;
}

// "a,b"; nullopt without a comma outside of braces.
std::optional<Names> expand_choices(std::string_view text) {
  auto comma = find_outside_braces(text, ',', 0);
  if (comma == text.size()) return std::nullopt;
  Names names;
  for (std::size_t begin = 0;; comma = find_outside_braces(text, ',', begin)) {
    std::ranges::move(expand_braces(text.substr(begin, comma - begin)), std::back_inserter(names));
    if (comma == text.size()) return names;
    begin = comma + 1;
  }
}

Names expand_expression(std::string_view text) {
  if (auto names = expand_range(text)) return *std::move(names);
  if (auto names = expand_choices(text)) return *std::move(names);
  return product(product({"{"}, expand_braces(text), text), {"}"}, text);
}

}  // namespace

std::vector<std::string> expand_braces(std::string_view pattern) {
  Names names{""};
  for (std::size_t at = 0; at < pattern.size();) {
    const auto open = find_outside_braces(pattern, '{', at);
    names = product(names, {std::string(pattern.substr(at, open - at))}, pattern);
    if (open == pattern.size()) break;
    const auto close = find_outside_braces(pattern, '}', open + 1);
    if (close == pattern.size()) throw_error<ArgumentError>("{}: a brace has no partner", pattern);
    names = product(names, expand_expression(pattern.substr(open + 1, close - open - 1)), pattern);
    at = close + 1;
  }
  check_count(names.size(), pattern);
  return names;
}

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kShardMagic = "lockstep shard index 1\n";

// A file that belongs to a sample.
struct ShardField {
  std::string key;
  std::string extension;
  TarMember member;
};

// "__name__" as the first part of a path is metadata of the shard.
bool is_metadata(std::string_view path) {
  const auto first = path.substr(0, path.find('/'));
  return first.size() >= 4 && first.starts_with("__") && first.ends_with("__");
}

// The position of the dot between key and extension: the first one of the file's name. As in webdataset, a
// name that begins with a dot has the folder as its key, if the folder's name has no dot.
std::size_t find_dot(std::string_view path) {
  const auto slash = path.rfind('/');
  const auto name = slash == std::string_view::npos ? 0 : slash + 1;
  const auto dot = path.find('.', name);
  if (dot != name) return dot;
  if (name == 0) return std::string_view::npos;
  const auto outer = slash == 0 ? std::string_view::npos : path.rfind('/', slash - 1);
  const auto folder = outer == std::string_view::npos ? 0 : outer + 1;
  const bool has_dot = path.substr(folder, slash - folder).find('.') != std::string_view::npos;
  return has_dot ? std::string_view::npos : dot;
}

std::string lower_case(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? char(c + 32) : c; });
  return lower;
}

// The next file that belongs to a sample; nullopt at the end of the archive.
std::optional<ShardField> next_field(TarReader& reader) {
  while (auto member = reader.next()) {
    const std::string_view path = member->path;
    const auto dot = find_dot(path);
    if (dot == std::string_view::npos || is_metadata(path)) continue;
    return ShardField{.key = std::string(path.substr(0, dot)),
                      .extension = lower_case(path.substr(dot + 1)),
                      .member = *std::move(member)};
  }
  return std::nullopt;
}

// A shard that an index describes.
struct ShardState {
  std::string path;
  std::int64_t bytes = 0;
  std::int64_t modified = 0;  // nanoseconds
  ShardOffsets offsets{};

  bool is_same_file(const ShardState& other) const {
    return path == other.path && bytes == other.bytes && modified == other.modified;
  }
  static void for_each_part(auto& self, auto visit) {
    visit(self.path);
    visit(self.bytes);
    visit(self.modified);
    visit(self.offsets);
  }
};

struct ShardIndex {
  std::vector<ShardState> shards;
  static void for_each_part(auto& self, auto visit) { visit(self.shards); }
};

void check_offsets(const ShardIndex& index) {
  for (const auto& shard : index.shards) {
    const auto& offsets = shard.offsets;
    if (offsets.empty() || offsets.front() < 0 || !std::ranges::is_sorted(offsets)) throw DamagedIndex();
  }
}

ShardState state_of(const fs::path& path) {
  const ErrorFile about(path);
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    throw_error<DataError>("{}: the shard cannot be read: {}", path.string(), errno_text(errno));
  }
  constexpr std::int64_t kNanoseconds = 1'000'000'000;
  return {.path = path.string(),
          .bytes = status.st_size,
          .modified = status.st_mtim.tv_sec * kNanoseconds + status.st_mtim.tv_nsec};
}

// The index of the shards, of which only their states are known; nullopt when the cache does not fit them.
std::optional<ShardIndex> read_cache(const std::vector<ShardState>& shards, const fs::path& cache) {
  auto cached = read_index<ShardIndex>(cache, kShardMagic, check_offsets);
  if (!cached || !std::ranges::equal(cached->shards, shards, &ShardState::is_same_file)) return std::nullopt;
  return cached;
}

void write_cache(const ShardIndex& index, const fs::path& cache) {
  const auto newest = std::ranges::max(index.shards, {}, &ShardState::modified).modified;
  if (!may_change_unnoticed(newest)) write_index(index, cache, kShardMagic, "WebDataset");
}

}  // namespace

ShardOffsets scan_shard(const at::Tensor& bytes, const std::string& name) {
  const ErrorFile about(name);
  TarReader reader(as_text(bytes), name);
  ShardOffsets offsets;
  std::string key;
  std::set<std::string> extensions;
  while (auto field = next_field(reader)) {
    if (offsets.empty() || field->key != key) {
      offsets.push_back(field->member.begin);
      key = std::move(field->key);
      extensions.clear();
    }
    if (!extensions.insert(field->extension).second) {
      throw_error<DataError>("{}: sample {} has a second field {}: the file {} at offset {}", name, key,
                             field->extension, field->member.path, field->member.begin);
    }
  }
  offsets.push_back(reader.offset());
  return offsets;
}

WebSample read_sample(const at::Tensor& bytes, const std::string& name, std::int64_t begin,
                      std::int64_t end) {
  const ErrorFile about(name);
  TarReader reader(as_text(bytes), name, begin);
  WebSample sample{.key = {}, .shard = name, .fields = {}};
  while (reader.offset() < end) {
    auto field = next_field(reader);
    if (!field || field->member.begin >= end) break;
    sample.key = std::move(field->key);
    sample.fields.emplace(std::move(field->extension),
                          bytes.narrow(0, field->member.offset, field->member.size));
  }
  if (sample.fields.empty()) {
    throw_error<DataError>("{}: no sample is at offset {}; the shard was changed after it was opened", name,
                           begin);
  }
  return sample;
}

ShardSet::ShardSet(std::vector<fs::path> paths, const fs::path& index_cache) : paths_(std::move(paths)) {
  if (paths_.empty()) throw ArgumentError("WebDataset: no shard is given");
  ShardIndex index;
  for (const auto& path : paths_) {
    index.shards.push_back(state_of(path));
    bytes_.push_back(map_file(path));
  }
  auto cached = index_cache.empty() ? std::nullopt : read_cache(index.shards, index_cache);
  if (cached) {
    index = *std::move(cached);
  } else {
    for (std::size_t i = 0; i < paths_.size(); ++i) {
      index.shards[i].offsets = scan_shard(bytes_[i], index.shards[i].path);
    }
    if (!index_cache.empty()) write_cache(index, index_cache);
  }
  for (auto& shard : index.shards) {
    sample_ends_.push_back(size() + static_cast<std::int64_t>(shard.offsets.size()) - 1);
    offsets_.push_back(std::move(shard.offsets));
  }
  if (size() == 0)
    throw_error<DataError>(ErrorDetails{.file = paths_.front()}, "{}: the shards have no sample",
                           paths_.front().string());
}

std::vector<std::int64_t> ShardSet::sizes() const {
  std::vector<std::int64_t> sizes;
  for (const auto& offsets : offsets_) sizes.push_back(static_cast<std::int64_t>(offsets.size()) - 1);
  return sizes;
}

WebSample ShardSet::read(std::int64_t sample) const {
  const auto found = std::ranges::upper_bound(sample_ends_, sample);
  const auto shard = static_cast<std::size_t>(found - sample_ends_.begin());
  const auto first = shard == 0 ? 0 : sample_ends_[shard - 1];
  const auto* offset = &offsets_[shard][static_cast<std::size_t>(sample - first)];
  return read_sample(bytes_[shard], paths_[shard].string(), offset[0], offset[1]);
}

}  // namespace lockstep::data
