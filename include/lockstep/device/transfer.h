// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

#include <lockstep/device/find_tensors.h>

namespace lockstep {

/// Whether LibTorch can pin memory: whether it finds an accelerator. PyTorch:
/// `torch.accelerator.is_available`.
bool can_pin_memory();

/// `tensor` in page-locked memory, from which devices copy while the CPU goes on; itself when it lies there
/// already, or on a device. LibTorch uses the memory again once it is free and no copy reads it any more.
/// Safe from any thread. PyTorch: `Tensor.pin_memory`.
at::Tensor pin_memory(const at::Tensor& tensor);

/// Marks what the calling thread has queued so far on the current stream of `device`.
c10::Event mark_queued_work(const c10::Device& device);

/// Marks the work that makes `value`, when its tensors lie on a device: for handing it to another thread or
/// stream, which has to take_over(). Nothing for tensors on the CPU.
template <device::Findable T>
std::optional<c10::Event> mark_tensors(T& value) {
  std::optional<c10::Device> place;
  visit_tensors(value, [&](at::Tensor& tensor) {
    if (!tensor.is_cpu()) place = tensor.device();
  });
  if (!place) return std::nullopt;
  return mark_queued_work(*place);
}

/// The current stream of `tensor`'s device waits for `event`, and the memory of `tensor` stays what it is
/// until all that is queued there by the time the tensor is freed is done. Does nothing for tensors on the
/// CPU.
void take_over(const at::Tensor& tensor, const c10::Event& event);

/// take_over() of each tensor in `value`.
template <device::Findable T>
void take_over(T& value, const c10::Event& event) {
  visit_tensors(value, [&](at::Tensor& tensor) { take_over(std::as_const(tensor), event); });
}

/// A stream of a device beside the current one, on which batches are copied to the device while the step
/// before runs. Knows any device that LibTorch has streams and events for, and needs no header of CUDA.
class TransferStream {
 public:
  /// `device`: without an index the current one of its kind. Throws ArgumentError when there is no such
  /// device, or none that has streams.
  explicit TransferStream(const c10::Device& device);

  /// With its index.
  c10::Device device() const { return stream_.device(); }
  const c10::Stream& stream() const { return stream_; }

  /// Replaces the tensors in `value` by copies on the device and returns without waiting for them, if they
  /// lie in pinned memory; take_over() with the event that is returned before they are used. Tensors that are
  /// on the device already stay. `made`: what the tensors have to wait for, if they lie on a device.
  template <device::Findable T>
  c10::Event send(T& value, const std::optional<c10::Event>& made = std::nullopt) const {
    const c10::StreamGuard guard(stream_);
    if (made) visit_tensors(value, [&](at::Tensor& tensor) { take_over(std::as_const(tensor), *made); });
    visit_tensors(value, [&](at::Tensor& tensor) { tensor = copied(tensor); });
    return mark_queued_work(device());
  }

 private:
  at::Tensor copied(const at::Tensor& tensor) const;

  c10::Stream stream_;
};

}  // namespace lockstep
