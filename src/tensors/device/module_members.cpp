// SPDX-License-Identifier: BSD-3-Clause
#include "device/module_members.h"

namespace lockstep::device {
namespace {

using torch::nn::Module;
using Tensors = torch::OrderedDict<std::string, at::Tensor>;
using Modules = torch::OrderedDict<std::string, std::shared_ptr<Module>>;

struct ParametersOf : Module {
  static constexpr auto member = &ParametersOf::parameters_;
};

// An explicit instantiation may name private members.
template <typename Key, typename Key::Member member>
struct Reveal {
  friend typename Key::Member member_of(Key) { return member; }
};

struct Buffers {
  using Member = Tensors Module::*;
  friend Member member_of(Buffers);
};
template struct Reveal<Buffers, &Module::buffers_>;

struct Children {
  using Member = Modules Module::*;
  friend Member member_of(Children);
};
template struct Reveal<Children, &Module::children_>;

}  // namespace

const Tensors& own_parameters(const Module& module) { return module.*ParametersOf::member; }
const Tensors& own_buffers(const Module& module) { return module.*member_of(Buffers()); }
const Modules& own_children(const Module& module) { return module.*member_of(Children()); }

}  // namespace lockstep::device
