// SPDX-License-Identifier: BSD-3-Clause
#include <atomic>
#include <cmath>
#include <iostream>
#include <map>
#include <memory>

#include <fmt/format.h>

#include "checkpoint_file.h"
#include "commands.h"
#include "leaves.h"
#include "progress.h"

namespace lockstep::ckpt {
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

}  // namespace lockstep::ckpt
