// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/tensor_copies.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include "serialize/storage.h"

namespace lockstep::checkpointing {
namespace {

constexpr std::int64_t kPiece = 1 << 20;  // bytes

bool is_plain(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

// Uses non-temporal stores. memcpy bypasses the caches only for larger pieces and at::copy_ never does, so
// each line of the copy would be read before it is written.
void copy_piece(char* to, const char* from, std::size_t bytes) {
#ifdef __SSE2__
  constexpr std::size_t kLine = 64;
  const auto ahead = std::min(bytes, (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine);
  std::memcpy(to, from, ahead);
  std::size_t done = ahead;
  for (; done + kLine <= bytes; done += kLine) {
    const auto* source = reinterpret_cast<const __m128i*>(from + done);
    auto* target = reinterpret_cast<__m128i*>(to + done);
    for (int i = 0; i < 4; ++i) _mm_stream_si128(target + i, _mm_loadu_si128(source + i));
  }
  _mm_sfence();
  std::memcpy(to + done, from + done, bytes - done);
#else
  std::memcpy(to, from, bytes);
#endif
}

void copy_bytes(const at::Tensor& to, const at::Tensor& from) {
  auto* target = static_cast<char*>(to.mutable_data_ptr());
  const auto* source = static_cast<const char*>(from.const_data_ptr());
  at::parallel_for(0, static_cast<std::int64_t>(from.nbytes()), kPiece,
                   [&](std::int64_t first, std::int64_t last) {
                     copy_piece(target + first, source + first, static_cast<std::size_t>(last - first));
                   });
}

}  // namespace

void copy_into(const at::Tensor& to, const at::Tensor& from) {
  is_plain(from) ? copy_bytes(to, from) : static_cast<void>(to.copy_(from));
}

at::Tensor TensorCopies::take(std::size_t index, const at::Tensor& tensor) {
  if (copies_.size() <= index) copies_.resize(index + 1);
  auto& copy = copies_[index];
  const bool fits =
      copy.defined() && copy.sizes() == tensor.sizes() && copy.scalar_type() == tensor.scalar_type();
  if (!fits) {
    copy.reset();  // before there is another one
    copy = at::empty(tensor.sizes(), tensor.scalar_type());
  }
  copy_into(copy, tensor);
  return copy;
}

void TensorCopies::keep(std::size_t count) { copies_.resize(std::min(count, copies_.size())); }

const serialize::Pickled& Snapshot::take(const Value& value) {
  copy_ = serialize::pickle_value(value);
  memory_.keep(copy_.storages.size());
  for (std::size_t i = 0; i < copy_.storages.size(); ++i) {
    auto& storage = copy_.storages[i];
    storage = memory_.take(i, serialize::storage_bytes(storage)).storage();
  }
  return copy_;
}

}  // namespace lockstep::checkpointing
