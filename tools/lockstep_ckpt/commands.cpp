// SPDX-License-Identifier: BSD-3-Clause
#include "commands.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <lockstep/checkpoint/distributed_checkpoint.h>

#include "base/throw_error.h"
#include "checkpoint_file.h"
#include "leaves.h"
#include "progress.h"
#include "serialize/zip.h"

namespace lockstep::ckpt {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kLongestValue = 200;

struct Totals {
  std::size_t entries = 0;
  std::size_t tensors = 0;
  std::int64_t elements = 0;
  std::uint64_t bytes = 0;
};

Totals totals_of(const std::vector<Leaf>& leaves) {
  Totals totals{.entries = leaves.size(), .bytes = total_bytes(leaves)};
  for (const auto& leaf : leaves) {
    if (const auto* tensor = leaf.tensor()) {
      ++totals.tensors;
      totals.elements += tensor->numel();
    }
  }
  return totals;
}

Json row(const Leaf& leaf) {
  Json row = {{"key", leaf.path}, {"type", leaf.value->type_name()}};
  if (const auto* tensor = leaf.tensor()) {
    row["dtype"] = dtype_name(tensor->scalar_type());
    row["shape"] = tensor->sizes().vec();
    row["bytes"] = bytes_of(*tensor);
  } else {
    row["value"] = repr(*leaf.value);
  }
  return row;
}

std::string json_text(const Checkpoint& checkpoint, const std::vector<Leaf>& leaves) {
  const auto totals = totals_of(leaves);
  Json entries = Json::array();
  for (const auto& leaf : leaves) entries.push_back(row(leaf));
  const Json document = {{"file", checkpoint.file.string()}, {"metadata", checkpoint.metadata},
                         {"entries", std::move(entries)},    {"tensors", totals.tensors},
                         {"elements", totals.elements},      {"bytes", totals.bytes}};
  // What is no UTF-8 must not be an error here.
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string table_text(const Checkpoint& checkpoint, const std::vector<Leaf>& leaves) {
  constexpr std::size_t widest_key = 60;
  std::size_t width = 3;
  for (const auto& leaf : leaves) width = std::max(width, std::min(widest_key, printable(leaf.path).size()));
  auto text = fmt::format("{:<{}}  {:<10}  {:<14}  {:<18}  {:>10}\n", "KEY", width, "TYPE", "DTYPE", "SHAPE",
                          "BYTES");
  for (const auto& leaf : leaves) {
    text += fmt::format("{:<{}}  {:<10}  ", printable(leaf.path), width, leaf.value->type_name());
    if (const auto* tensor = leaf.tensor()) {
      text += fmt::format("{:<14}  {:<18}  {:>10}\n", dtype_name(tensor->scalar_type()), shape_text(*tensor),
                          bytes_of(*tensor));
    } else {
      text += repr(*leaf.value, kLongestValue) + "\n";
    }
  }
  for (const auto& [key, value] : checkpoint.metadata) {
    text += fmt::format("metadata {}: {}\n", printable(key), printable(value));
  }
  const auto totals = totals_of(leaves);
  return text + fmt::format("{} entries, {} tensors of {} elements, {}\n", totals.entries, totals.tensors,
                            totals.elements, bytes_text(totals.bytes));
}

}  // namespace

Command add_show_command(CLI::App& app) {
  struct Options {
    std::string file;
    bool json = false;
  };
  const auto options = std::make_shared<Options>();
  auto* command =
      app.add_subcommand("show", "List the entries of a checkpoint with types, dtypes and shapes");
  command->add_option("file", options->file, "Checkpoint: a file or a distributed checkpoint's folder")
      ->required();
  command->add_flag("--json", options->json, "Print JSON");
  return {command, [options] {
            const auto checkpoint = read_checkpoint(options->file, {.map_location = at::kMeta});
            const auto leaves = leaves_of(checkpoint.value);
            const auto text = options->json ? json_text : table_text;
            std::cout << text(checkpoint, leaves) << std::flush;
            return 0;
          }};
}

namespace {

// Entries of a checkpoint may share a path, such as "a.b" and "b" in "a". The n-th of a path is compared with
// the n-th.
using LeafKey = std::pair<std::string, int>;

std::vector<std::pair<LeafKey, const Leaf*>> numbered(const std::vector<Leaf>& leaves) {
  std::map<std::string, int> times;
  std::vector<std::pair<LeafKey, const Leaf*>> result;
  result.reserve(leaves.size());
  for (const auto& leaf : leaves) result.push_back({{leaf.path, times[leaf.path]++}, &leaf});
  return result;
}

std::string describe(const Leaf& leaf) {
  const auto* tensor = leaf.tensor();
  if (tensor != nullptr) return fmt::format("{} {}", dtype_name(tensor->scalar_type()), shape_text(*tensor));
  return fmt::format("{} {}", leaf.value->type_name(), repr(*leaf.value, 100));
}

bool close_enough(const Value& a, const Value& b, const Tolerance& tolerance) {
  if (equal(a, b)) return true;
  const auto* left = a.get_if<double>();
  const auto* right = b.get_if<double>();
  if (left == nullptr || right == nullptr) return false;
  if (std::isnan(*left) && std::isnan(*right)) return true;
  return std::abs(*left - *right) <= tolerance.atol + tolerance.rtol * std::abs(*right);
}

class Comparison {
 public:
  explicit Comparison(const Tolerance& tolerance) : tolerance_(tolerance) {}

  void compare(const std::vector<Leaf>& a, const std::vector<Leaf>& b) {
    const Progress progress("comparing", total_bytes(a), [this] { return compared_.load(); });
    const auto ones = numbered(a);
    const auto others = numbered(b);
    std::map<LeafKey, const Leaf*> in_b(others.begin(), others.end());
    for (const auto& [key, leaf] : ones) {
      const auto found = in_b.find(key);
      if (found == in_b.end()) {
        report("only in A", *leaf, describe(*leaf));
        continue;
      }
      compare(*leaf, *found->second);
      in_b.erase(found);
    }
    for (const auto& [key, leaf] : others) {
      if (in_b.contains(key)) report("only in B", *leaf, describe(*leaf));
    }
  }

  std::size_t differences() const { return differences_; }

 private:
  void compare(const Leaf& a, const Leaf& b) {
    const auto* left = a.tensor();
    const auto* right = b.tensor();
    if (left != nullptr && right != nullptr) {
      compare(a, *left, *right);
    } else if (left != nullptr || right != nullptr || a.value->type_name() != b.value->type_name()) {
      report("type", a, fmt::format("{} in A, {} in B", describe(a), describe(b)));
    } else if (!close_enough(*a.value, *b.value, tolerance_)) {
      report("value", a, fmt::format("{} in A, {} in B", repr(*a.value, 100), repr(*b.value, 100)));
    }
  }

  void compare(const Leaf& leaf, const at::Tensor& a, const at::Tensor& b) {
    if (a.scalar_type() != b.scalar_type()) {
      report("dtype", leaf,
             fmt::format("{} in A, {} in B", dtype_name(a.scalar_type()), dtype_name(b.scalar_type())));
    } else if (a.sizes() != b.sizes()) {
      report("shape", leaf, fmt::format("{} in A, {} in B", shape_text(a), shape_text(b)));
    } else if (!a.is_meta() && !b.is_meta()) {
      const auto found = difference(a, b, tolerance_, [this](std::uint64_t bytes) { compared_ += bytes; });
      if (found.count == 0) return;
      report("values", leaf,
             fmt::format("{} of {} differ, by at most {:.6g}", found.count, a.numel(), found.largest));
    }
  }

  void report(std::string_view what, const Leaf& leaf, const std::string& how) {
    ++differences_;
    std::cout << fmt::format("{}: {}: {}\n", what, printable(leaf.path), how);
  }

  Tolerance tolerance_;
  std::size_t differences_ = 0;
  std::atomic<std::uint64_t> compared_ = 0;
};

int diff(const std::string& file_a, const std::string& file_b, const Tolerance& tolerance) {
  const auto a = read_checkpoint(file_a, {.mmap = true});
  const auto b = read_checkpoint(file_b, {.mmap = true});
  const auto in_a = leaves_of(a.value);
  const auto in_b = leaves_of(b.value);
  Comparison comparison(tolerance);
  comparison.compare(in_a, in_b);
  const auto differences = comparison.differences();
  std::cout << (differences == 0 ? fmt::format("no difference in {} entries\n", in_a.size())
                                 : fmt::format("{} differences: {} entries in A, {} in B\n", differences,
                                               in_a.size(), in_b.size()))
            << std::flush;
  return differences == 0 ? 0 : 1;
}

}  // namespace

Command add_diff_command(CLI::App& app) {
  struct Options {
    std::string a;
    std::string b;
    Tolerance tolerance;
  };
  const auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand("diff", "Compare two checkpoints; exit code 1 if they differ");
  command->add_option("a", options->a, "First checkpoint (A)")->required();
  command->add_option("b", options->b, "Second checkpoint (B)")->required();
  command->add_option("--rtol", options->tolerance.rtol, "Relative tolerance")->check(CLI::NonNegativeNumber);
  command->add_option("--atol", options->tolerance.atol, "Absolute tolerance")->check(CLI::NonNegativeNumber);
  return {command, [options] { return diff(options->a, options->b, options->tolerance); }};
}

namespace {

// Finds unreadable sectors. The format has no checksums.
void read_whole(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  std::vector<char> piece(1 << 20);
  while (in.read(piece.data(), std::ssize(piece))) {
  }
  if (in.bad() || !in.eof())
    throw_error<CheckpointReadError>("{}: cannot be read to its end; check the disk", file);
}

// Assembles nothing, so that a folder larger than memory can be verified.
std::string verify_folder(const std::string& folder) {
  const distributed_checkpoint::Reader reader(folder);
  const auto progress = reading_progress(folder);
  reader.verify();
  return fmt::format("{} entries, every part is there, checksums match", reader.keys().size());
}

std::string verify(const std::string& file) {
  const auto kind = kind_to_read(file);
  if (kind == FileKind::folder) return verify_folder(file);
  const auto progress = reading_progress(file);
  // Mapped, so that a file larger than memory can be verified.
  const auto checkpoint = read_checkpoint(file, {.mmap = true, .verify = true});
  const auto count = leaves_of(checkpoint.value).size();
  const bool is_zip = kind == FileKind::torch_file &&
                      serialize::ZipReader::looks_like_zip(*serialize::open_file(file, false));
  if (is_zip) return fmt::format("{} entries, checksums match", count);
  read_whole(file);
  return fmt::format("{} entries; the format has no checksums", count);
}

void print_count(int count, std::size_t all, const char* what) {
  if (count > 0) std::cout << fmt::format("{} of {} checkpoints {}\n", count, all, what) << std::flush;
}

int verify_all(const std::vector<std::string>& files) {
  int damaged = 0;
  int unreadable = 0;
  for (const auto& file : files) {
    try {
      std::cout << fmt::format("{}: OK, {}\n", file, verify(file)) << std::flush;
    } catch (const CheckpointReadError& error) {
      ++unreadable;
      std::cout << fmt::format("{}; it may be intact\n", error.what()) << std::flush;
    } catch (const CheckpointError& error) {
      ++damaged;
      std::cout << error.what() << std::endl;
    }
  }
  print_count(damaged, files.size(), "are damaged or missing");
  print_count(unreadable, files.size(),
              "cannot be read and may be intact: check permissions, disk and memory, then verify again");
  return damaged + unreadable > 0 ? 1 : 0;
}

}  // namespace

Command add_verify_command(CLI::App& app) {
  const auto files = std::make_shared<std::vector<std::string>>();
  auto* command =
      app.add_subcommand("verify", "Check that checkpoints are intact; exit code 1 if one is not");
  command->add_option("files", *files, "Checkpoints")->required();
  return {command, [files] { return verify_all(*files); }};
}

}  // namespace lockstep::ckpt
