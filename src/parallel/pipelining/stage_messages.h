// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <map>
#include <optional>
#include <source_location>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/comm/process_group.h>
#include <lockstep/pipelining/schedule.h>

namespace lockstep::pipelining {

// Shape and type of a tensor between two stages.
struct TensorMeta {
  std::vector<std::int64_t> sizes;
  at::ScalarType dtype;
  bool requires_grad;
  bool operator==(const TensorMeta&) const = default;
};

// The messages of this rank between stages: activations to the next, gradients to the one before. Before the
// first activations between two stages a header says their shapes.
class StageMessages {
 public:
  using Tensors = std::vector<at::Tensor>;

  StageMessages(ProcessGroup group, const Plan& plan, at::Device device);

  // The line of the program that makes the next run, for records.
  void set_place(std::source_location where) { where_ = where; }

  // `action`: SEND_F, RECV_F, SEND_B or RECV_B. Tensors are those of the action's stage.
  void send_forward(const Action& action, const Tensors& outputs);
  void post_forward(const Action& action);
  // The inputs of the action's stage and micro-batch; leaves.
  Tensors take_forward(const Action& action);

  // The gradients of the inputs that require one.
  void send_backward(const Action& action, const Tensors& gradients);
  // `outputs`: of the stage; the gradients have their shapes.
  void post_backward(const Action& action, const Tensors& outputs);
  // One for each output; undefined where it requires none.
  Tensors take_backward(const Action& action);

  void wait_for_sends();
  // The next headers are sent again, e.g. because gradients are needed from now on.
  void forget_shapes();

  int peer_of(int stage) const { return rank_of_.at(static_cast<std::size_t>(stage)); }

 private:
  struct Receipt {
    Tensors buffers = {};
    std::vector<Work> works = {};
  };
  struct Shapes {
    std::optional<std::vector<TensorMeta>> metas = {};
    at::Tensor header = {};
    Work header_work = {};
    std::vector<Action> waiting = {};  // receives whose shapes are not known yet
  };
  struct Sent {
    Action action;
    Work work;
  };
  using Key = std::pair<int, int>;  // stage, micro-batch

  int tag(bool forward, const Action& action, std::size_t index) const;
  void send(const Action& action, const at::Tensor& tensor, int peer, int tag);
  void post(const Action& action, const std::vector<TensorMeta>& metas);
  void learn_shapes(Shapes& shapes);

  ProcessGroup group_;
  std::vector<int> rank_of_;
  int num_stages_, n_microbatches_;
  at::Device device_;
  std::source_location where_;
  std::map<int, std::vector<TensorMeta>> announced_;  // by the sending stage
  std::map<int, Shapes> shapes_;                      // by the receiving stage
  std::map<Key, Receipt> forward_, backward_;
  std::vector<Sent> sent_;
};

}  // namespace lockstep::pipelining
