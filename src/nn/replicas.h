// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Generator.h>

#include <lockstep/nn/data_parallel.h>

#include "nn/gradient_sums.h"
#include "nn/named_tensors.h"
#include "nn/thread_pool.h"

namespace lockstep::nn {

// A module's replicas and the threads that run them.
class Replicas {
 public:
  using Make = std::function<std::shared_ptr<torch::nn::Module>()>;
  // `is_replica`: whether a module has the original's type.
  Replicas(std::shared_ptr<torch::nn::Module> original, const std::vector<c10::Device>& devices,
           const Make& make, const std::function<bool(const torch::nn::Module&)>& is_replica);

  std::size_t size() const { return replicas_.size(); }
  const c10::Device& device(std::size_t i) const { return replicas_[i].device; }
  bool all_on_cpu() const;
  torch::nn::Module& module(std::size_t i) { return *replicas_[i].module; }

  // Updates the first `count` replicas to the original's parameters, buffers and modes.
  void update(std::size_t count);

  // The original's parameters, each once.
  const std::vector<NamedTensor>& parameters() const { return parameters_; }

  // While it lives, gradients of the replicas' parameters go to `sums` and not to .grad. One at a time.
  class Collection {
   public:
    Collection(GradientSums*& slot, GradientSums& sums) : slot_(slot) { slot_ = &sums; }
    ~Collection() { slot_ = nullptr; }
    Collection(const Collection&) = delete;
    Collection& operator=(const Collection&) = delete;

   private:
    GradientSums*& slot_;
  };
  [[nodiscard]] Collection collect_gradients(GradientSums& sums) { return {*sums_, sums}; }

  // Runs job(i) for the first `count` replicas in parallel, each in its thread with the caller's LibTorch
  // state and its own device, share of the cores and generator. Throws Error naming the first that failed.
  void run(std::size_t count, const std::function<void(std::size_t)>& job);

  // Seeds the replicas' generators from the default generator.
  void seed();

 private:
  struct Parameter {
    at::Tensor tensor;
    std::size_t original;  // its index in parameters()
  };
  struct Replica {
    c10::Device device;
    std::shared_ptr<torch::nn::Module> module;
    std::vector<Parameter> parameters;
    at::Generator generator;
  };
  struct CallerState;
  void check_parameters() const;
  void add(c10::Device device, std::shared_ptr<torch::nn::Module> module);
  void update_buffers(std::size_t i);
  void update_modes(torch::nn::Module& replica) const;

  std::shared_ptr<torch::nn::Module> original_;
  std::vector<NamedTensor> parameters_;
  std::vector<Replica> replicas_;
  std::shared_ptr<GradientSums*> sums_ = std::make_shared<GradientSums*>(nullptr);  // shared with hooks
  std::unique_ptr<ThreadPool> threads_;
};

// The result of a forward on replicas: [i] is replica i's.
struct ReplicasForward {
  std::vector<std::vector<at::Tensor>> inputs;   // its parts of the inputs, leaves of its graph
  std::vector<std::vector<at::Tensor>> outputs;  // the ends of its graph
};

// Makes `gathered` depend on `inputs` and on the original module's parameters. Its backward runs those of the
// replicas in parallel.
void record_backward(const std::vector<at::Tensor>& gathered, const std::vector<at::Tensor>& inputs,
                     ReplicasForward forward, std::int64_t dim, std::shared_ptr<Replicas> replicas);

// Cuts each tensor along `dim` as torch::chunk does, into `count` parts or fewer. Returns [i] = the parts of
// replica i; without tensors `parts_of_none` empty lists. Throws ArgumentError unless all tensors have
// equally many parts.
std::vector<std::vector<at::Tensor>> scatter(const std::vector<at::Tensor>& tensors, std::size_t count,
                                             std::int64_t dim, std::size_t parts_of_none);

// Concatenates parts[i] of replica i along `dim`; stacks tensors without dimensions.
at::Tensor gather(const std::vector<at::Tensor>& parts, c10::Device device, std::int64_t dim);

// Cuts the gradient of a gathered tensor into those of its parts; undefined for undefined.
std::vector<at::Tensor> scatter_gradient(const at::Tensor& gradient, const std::vector<at::Tensor>& parts,
                                         std::int64_t dim);

}  // namespace lockstep::nn
