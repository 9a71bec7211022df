// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Generator.h>

#include <lockstep/nn/data_parallel.h>

#include "nn/gradient_sums.h"
#include "nn/named_tensors.h"
#include "nn/worker_team.h"

namespace lockstep::nn {

// A module's replicas and the threads that run them.
class Replicas {
 public:
  Replicas(std::shared_ptr<torch::nn::Module> original, const DataParallelOptions& options,
           const std::function<bool(const torch::nn::Module&)>& is_replica);

  std::size_t size() const { return replicas_.size(); }
  const c10::Device& device(std::size_t i) const { return replicas_[i].device; }
  bool all_on_cpu() const;
  torch::nn::Module& module(std::size_t i) { return *replicas_[i].module; }

  // Gives the first `count` replicas the original's present parameters, buffers and modes.
  void update(std::size_t count);

  // The original's parameters, each once.
  const std::vector<NamedTensor>& parameters() const { return parameters_; }

  // While it lives, gradients of the replicas' parameters go to `sums` instead of staying with them. One at a
  // time.
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

  // Runs job(i) for the first `count` replicas at once, each in its thread with the caller's LibTorch state,
  // its device, its share of the cores and its random numbers; throws Error naming the first that failed.
  void run(std::size_t count, const std::function<void(std::size_t)>& job);

  // Random numbers from here on follow from one that is drawn now.
  void seed();

 private:
  // A parameter of a replica, and which of the original's it is.
  struct Parameter {
    at::Tensor tensor;
    std::size_t original;
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
  std::unique_ptr<WorkerTeam> workers_;
};

}  // namespace lockstep::nn
