// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "machine/gpu.h"
#include "machine/host.h"

namespace lockstep::doctor {

// The devices of this host, for `lockstep devices`.
struct Devices {
  std::string host{};
  machine::Processor processor{};
  machine::Memory memory{};
  std::vector<machine::NumaNode> nodes{};
  machine::Gpus gpus{};
};

// Reads the devices of this host.
Devices read_devices();

// A table without lines longer than `width`.
std::string devices_text(const Devices& devices, std::optional<std::size_t> width);

nlohmann::json devices_json(const Devices& devices);

}  // namespace lockstep::doctor
