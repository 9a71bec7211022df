// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::data::testing {

/// A device that LibTorch takes for an accelerator ("fake:0"), made of the CPU's memory: it does at once
/// what it is asked to, and writes down on which stream. Once for the process.
void register_fake_device();

/// What the device was asked for, in order, since the last call: "copy stream=1 pinned non_blocking", "record
/// event=1 stream=1", "block event=1 stream=0", "keep stream=0". Streams: 0 is the default one, 1 and up come
/// from the pool.
std::vector<std::string> take_fake_log();

c10::Device fake_device();

}  // namespace lockstep::data::testing
