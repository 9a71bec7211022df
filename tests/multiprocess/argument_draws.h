// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <lockstep/node/call_record.h>

namespace lockstep::testing {

// What argument_fuzzer_test.cpp draws: one call with arguments for every rank. All ranks draw alike, so each
// knows what the others pass, what the results are, and who is refused.

// Wrong arguments. A rank with any of them throws ArgumentError, and no other rank makes the call.
enum class Flaw : std::uint8_t {
  none,
  shared_outputs,      // two outputs are one tensor
  aliased_outputs,     // two outputs overlap, in two storages
  output_over_input,   // an output is the part of an input that it must not be
  shifted_over_input,  // this rank's part, shifted by one element
  expanded_output,
  overlapping_output,  // as_strided
  holes_in_output,
  expanded_input,
  undefined_output,
  undefined_input,
  lazy_conjugate,
  lazy_negation,
  sparse_output,
  meta_output,
  freed_output,
  other_dtype,
  other_shape,
  missing_part,
  bad_root,
  bad_operation,
  bad_splits,
  message_to_itself,
  negative_tag,
};
inline constexpr int kFlaws = static_cast<int>(Flaw::negative_tag) + 1;

// Where a tensor lies.
enum class Home : std::uint8_t { plain, offset, heap, leaf, inference };

struct Draw {
  std::uint64_t number = 0;
  int size = 1;  // ranks
  CallKind kind = CallKind::barrier;
  at::ScalarType dtype = at::kFloat;
  ReduceOp op = ReduceOp::SUM;
  ReduceOp bad_op = ReduceOp::BAND;  // of Flaw::bad_operation: not defined for the dtype
  int root = 0;                      // a message's sender
  int peer = 0;                      // a message's receiver
  bool any_source = false;
  std::vector<std::int64_t> shape = {};              // of one part
  std::vector<std::int64_t> order = {};              // of the dimensions in memory, in kinds with one tensor
  std::vector<std::vector<std::int64_t>> rows = {};  // [from][to] of the exchanges
  Home home = Home::plain;
  bool in_place = false;
  bool asynchronous = false;
  bool even_splits = false;
  Flaw flaw = Flaw::none;
  int flawed_rank = -1;  // -1: every rank

  bool is_message() const { return kind == CallKind::send; }
  std::int64_t numel() const { return c10::multiply_integers(shape); }
  // Whether this rank passes wrong arguments.
  bool is_flawed(int rank) const;
  // Whether a rank does.
  bool is_refused() const;
  // Whether the rank has a part in the call.
  bool takes_part(int rank) const { return !is_message() || rank == root || rank == peer; }
  std::string describe() const;
};

Draw draw_of(std::uint64_t seed, std::uint64_t number, int size, const std::vector<at::ScalarType>& dtypes);

struct Arguments {
  std::vector<at::Tensor> inputs = {};
  std::vector<at::Tensor> outputs = {};  // also the tensor of an in-place call
  std::vector<std::int64_t> input_splits = {};
  std::vector<std::int64_t> output_splits = {};
  int root = 0;
  int peer = 0;
  int tag = 0;
  ReduceOp op = ReduceOp::SUM;
  std::vector<at::Tensor> surroundings = {};  // the memory in which tensors lie that have a margin
};

// Makes a tensor in the memory of the backend.
using Allocate = std::function<at::Tensor(std::int64_t numel, at::ScalarType dtype)>;

Arguments arguments_of(const Draw& draw, int rank, const Allocate& allocate);

// Makes the arguments of a rank wrong as the draw says.
void spoil(const Draw& draw, int rank, Arguments& arguments);

// What is wrong with a rank's arguments after the call; empty: nothing.
std::string fault_of(const Draw& draw, int rank, const Arguments& arguments);

}  // namespace lockstep::testing
