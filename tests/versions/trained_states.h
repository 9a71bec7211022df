// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <lockstep/lockstep.h>

namespace lockstep::versions {

// Throws unless the condition holds.
void require(bool condition, const std::string& what);

// 0, 1, 2, ...
at::Tensor numbers(std::int64_t count, at::ScalarType dtype = at::kFloat);

// A run all of whose parts have a state. Equal runs have equal traces, and so has one that continues from a
// state.
class Run {
 public:
  Run();

  TrainingState& state() { return state_; }
  void make_steps(int count);
  // What the steps of this object have computed.
  const std::vector<double>& trace() const { return trace_; }

 private:
  struct Samples {
    std::int64_t size() const { return 20; }
    at::Tensor get_batch(const at::Tensor& indices) const;
  };

  void make_step(const at::Tensor& batch);

  torch::nn::Sequential net_;
  optim::FusedAdamW optimizer_;
  optim::StepLR scheduler_;
  optim::ReduceLROnPlateau plateau_;
  amp::GradScaler scaler_;
  optim::AveragedModel<torch::nn::Sequential> average_;
  data::DataLoader<Samples> loader_;
  EarlyStopping stopping_;
  metrics::AverageMeter meter_;
  metrics::Accuracy accuracy_;
  metrics::ConfusionMatrix confusion_;
  metrics::Auroc auroc_;
  std::int64_t steps_ = 0;
  std::string phase_ = "begins";
  bool is_warm_ = false;
  TrainingState state_;
  std::vector<double> trace_;
};

// Steps before the files of a run are written, and after they are loaded.
constexpr int kStepsBefore = 3;
constexpr int kStepsAfter = 3;

// Continues a run that has just been loaded. Throws unless it computes what an uninterrupted one does.
void require_continued(Run& run);

// {name: state} of optimizers, and of schedulers with their optimizers, after some steps.
Dict optimizer_states();
Dict scheduler_states();
// Load each state of the dict and continue. Throw, naming it, unless the steps are those without the
// interruption, and for a state of an unknown name.
void require_optimizers(const Dict& states);
void require_schedulers(const Dict& states);

}  // namespace lockstep::versions
