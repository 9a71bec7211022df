// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <optional>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/modules/embedding.h>

#include <lockstep/tensor_parallel/parallelize_module.h>

#include "modules/named_tensors.h"
#include "tensor_parallel/rules.h"

// Parameters of layers become parts of themselves.
namespace lockstep::tensor_parallel {

// The ranks, and the caller for errors.
struct Ranks {
  ProcessGroup group;
  std::source_location where;
};

// Throws for layouts that the style does not have. `name`: of what has the style, for errors.
void check_layouts(const ColwiseParallel& style, const std::string& name, const Ranks& ranks);
void check_layouts(const RowwiseParallel& style, const std::string& name, const Ranks& ranks);
void check_layouts(const PrepareModuleInput& style, const std::string& name, const Ranks& ranks);

// What a call does to parameters of layers: checked first, compared between the ranks, and then done. Until
// then nothing has changed.
class Cuts {
 public:
  // `caller`: for errors, such as "parallelize_module()".
  Cuts(Ranks ranks, const char* caller) : ranks_(std::move(ranks)), caller_(caller) {}

  const Ranks& ranks() const { return ranks_; }
  // make() makes the tensor this rank's part along `dim`; without a dimension it stays whole, and operators
  // for which it has no rule sum its gradient. A parameter that an earlier call cut alike gets the rule too.
  // `rule`: may be empty.
  void add(const at::Tensor& parameter, const std::string& name, std::optional<std::int64_t> dim, Rule rule);
  // The caller broadcasts the tensors after make(), which compares and checks them, but those that are parts.
  void send(const std::string& kind, const std::vector<modules::NamedTensor>& tensors);
  // make() calls it after the cuts.
  void then(std::function<void()> change) { then_.push_back(std::move(change)); }

  // Calls `plan`, which adds cuts and returns other lines that ranks must have alike, and makes the cuts. If
  // one rank's `plan` throws, or the lines differ, it is an error on all ranks, and so is a tensor that
  // cannot be sent. Collective.
  void make(const std::function<std::string()>& plan);

 private:
  struct Planned {
    at::Tensor parameter;
    std::string name;
    std::optional<std::int64_t> dim;
    Rule rule;
  };
  bool is_cut_alike(const at::Tensor& parameter, const std::string& name,
                    std::optional<std::int64_t> dim) const;
  std::string text() const;
  void make(Planned& planned) const;

  Ranks ranks_;
  const char* caller_;
  std::vector<Planned> planned_;
  std::vector<modules::NamedTensor> sent_;
  std::string sent_text_;
  std::vector<std::function<void()>> then_;
};

// "fc1: RowwiseParallel input_layouts=default output_layouts=Shard(1)". `name`: of what has the style.
std::string describe_style(const std::string& name, const ParallelStyle& style);

// The layer's parameters, of which the bias may be undefined. `name`: of the layer, with a dot if not empty.
// `shared`: see colwise_linear().
void cut_linear(const at::Tensor& weight, const at::Tensor& bias, const std::string& name,
                const ColwiseParallel& style, Cuts& cuts, std::shared_ptr<SharedInput> shared = nullptr);
void cut_linear(const at::Tensor& weight, const at::Tensor& bias, const std::string& name,
                const RowwiseParallel& style, Cuts& cuts, const std::shared_ptr<SharedInput>& = nullptr);

void cut_embedding(torch::nn::EmbeddingImpl& embedding, const std::string& name, const ColwiseParallel& style,
                   Cuts& cuts);
void cut_embedding(torch::nn::EmbeddingImpl& embedding, const std::string& name, const RowwiseParallel& style,
                   Cuts& cuts);

// The group of a mesh, which has one dimension.
Ranks ranks_of(const DeviceMesh& mesh, const char* caller, std::source_location where);

}  // namespace lockstep::tensor_parallel
