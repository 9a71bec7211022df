// SPDX-License-Identifier: BSD-3-Clause
#include "diff_command.h"

#include <atomic>
#include <cmath>
#include <iostream>
#include <map>

#include <fmt/format.h>

#include "checkpoint_file.h"
#include "leaves.h"
#include "progress.h"

namespace lockstep::ckpt {
namespace {

// Two entries of a checkpoint may have one path, as "a.b" and "b" in "a" do: the n-th is compared to the
// n-th.
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
        tell("only in A", *leaf, describe(*leaf));
        continue;
      }
      compare(*leaf, *found->second);
      in_b.erase(found);
    }
    for (const auto& [key, leaf] : others) {
      if (in_b.contains(key)) tell("only in B", *leaf, describe(*leaf));
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
      tell("type", a, fmt::format("{} in A, {} in B", describe(a), describe(b)));
    } else if (!close_enough(*a.value, *b.value, tolerance_)) {
      tell("value", a, fmt::format("{} in A, {} in B", repr(*a.value, 100), repr(*b.value, 100)));
    }
  }

  void compare(const Leaf& leaf, const at::Tensor& a, const at::Tensor& b) {
    if (a.scalar_type() != b.scalar_type()) {
      tell("dtype", leaf,
           fmt::format("{} in A, {} in B", dtype_name(a.scalar_type()), dtype_name(b.scalar_type())));
    } else if (a.sizes() != b.sizes()) {
      tell("shape", leaf, fmt::format("{} in A, {} in B", shape_text(a), shape_text(b)));
    } else if (!a.is_meta() && !b.is_meta()) {
      const auto found = difference(a, b, tolerance_, [this](std::uint64_t bytes) { compared_ += bytes; });
      if (found.count == 0) return;
      tell("values", leaf,
           fmt::format("{} of {} differ, by at most {:.6g}", found.count, a.numel(), found.largest));
    }
  }

  void tell(std::string_view what, const Leaf& leaf, const std::string& how) {
    ++differences_;
    std::cout << fmt::format("{}: {}: {}\n", what, printable(leaf.path), how);
  }

  Tolerance tolerance_;
  std::size_t differences_ = 0;
  std::atomic<std::uint64_t> compared_ = 0;
};

}  // namespace

DiffCommand::DiffCommand(CLI::App& app)
    : command_(app.add_subcommand("diff",
                                  "What differs between two checkpoints; exit code 1 when something does")) {
  command_->add_option("a", a_, "A checkpoint")->required();
  command_->add_option("b", b_, "Another one")->required();
  command_->add_option("--rtol", tolerance_.rtol, "Relative tolerance")->check(CLI::NonNegativeNumber);
  command_->add_option("--atol", tolerance_.atol, "Absolute tolerance")->check(CLI::NonNegativeNumber);
}

int DiffCommand::run() const {
  const auto a = read_checkpoint(a_, {.mmap = true});
  const auto b = read_checkpoint(b_, {.mmap = true});
  const auto in_a = leaves_of(a.value);
  const auto in_b = leaves_of(b.value);
  Comparison comparison(tolerance_);
  comparison.compare(in_a, in_b);
  if (comparison.differences() == 0) {
    std::cout << fmt::format("no difference in {} entries\n", in_a.size()) << std::flush;
    return 0;
  }
  std::cout << fmt::format("{} differences: {} entries in A, {} in B\n", comparison.differences(),
                           in_a.size(), in_b.size())
            << std::flush;
  return 1;
}

}  // namespace lockstep::ckpt
