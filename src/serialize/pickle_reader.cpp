// SPDX-License-Identifier: BSD-3-Clause
#include "serialize/pickle_reader.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "serialize/errors.h"
#include "serialize/pickle_opcodes.h"

namespace lockstep::pickle {
namespace {

// What one name of a module or class, and one memo, may be at most; far above anything real.
constexpr std::size_t kLongestName = 4096;

class Reader {
 public:
  Reader(std::span<const char> bytes, AllowedNames allowed) : bytes_(bytes), allowed_(allowed) {}

  Pickle read() {
    while (!stopped_) step(static_cast<Opcode>(take_byte()));
    pickle_.size = position_;
    return std::move(pickle_);
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    throw_error("the pickle is damaged at byte {}: {}", position_, what);
  }

  // Bytes.
  std::string_view take(std::size_t count) {
    if (count > bytes_.size() - position_)
      throw CutShort(fmt::format("the pickle is damaged at byte {}: it is cut short", position_));
    const std::string_view taken(bytes_.data() + position_, count);
    position_ += count;
    return taken;
  }
  std::uint8_t take_byte() { return static_cast<std::uint8_t>(take(1).front()); }
  template <typename Number>
  Number take_number() {
    Number number{};
    std::memcpy(&number, take(sizeof(number)).data(), sizeof(number));
    return number;
  }
  std::string_view take_line() {
    const auto rest = std::string_view(bytes_.data() + position_, bytes_.size() - position_);
    const auto end = rest.substr(0, kLongestName).find('\n');
    if (end == std::string_view::npos) {
      if (rest.size() >= kLongestName) fail("a name has no end");
      throw CutShort(fmt::format("the pickle is damaged at byte {}: it is cut short", position_));
    }
    position_ += end + 1;
    return rest.substr(0, end);
  }

  // Nodes and the stack of them.
  Ref add(Node node) {
    if (pickle_.nodes.size() >= kNoRef) fail("it has too many objects");
    pickle_.nodes.push_back(std::move(node));
    return static_cast<Ref>(pickle_.nodes.size() - 1);
  }
  void push(Node node) { stack_.push_back(add(std::move(node))); }
  Ref pop() {
    if (stack_.size() <= floor()) fail("an object is missing on the stack");
    const Ref ref = stack_.back();
    stack_.pop_back();
    return ref;
  }
  Ref top() const {
    if (stack_.size() <= floor()) fail("an object is missing on the stack");
    return stack_.back();
  }
  std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  std::vector<Ref> pop_to_mark() {
    if (marks_.empty()) fail("a mark is missing on the stack");
    const auto first = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<Ref> items(first, stack_.end());
    stack_.erase(first, stack_.end());
    marks_.pop_back();
    return items;
  }
  void push_tuple(std::size_t count) {
    std::vector<Ref> items(count);
    for (auto item = items.rbegin(); item != items.rend(); ++item) *item = pop();
    push({.kind = Kind::tuple, .items = std::move(items)});
  }

  void push_text(Kind kind, std::uint64_t count) { push({.kind = kind, .text = take(count)}); }
  void push_integer(std::int64_t value) { push({.kind = Kind::integer, .integer = value}); }
  void push_long(std::size_t count) {
    const auto text = take(count);
    if (count > sizeof(std::int64_t)) {
      push({.kind = Kind::big_integer, .text = text});
      return;
    }
    std::uint64_t value = !text.empty() && (text.back() & 0x80) != 0 ? ~std::uint64_t{0} : 0;
    std::memcpy(&value, text.data(), count);
    push_integer(static_cast<std::int64_t>(value));
  }
  void push_real() {
    const auto bits = __builtin_bswap64(take_number<std::uint64_t>());
    push({.kind = Kind::real, .real = std::bit_cast<double>(bits)});
  }

  void push_global(std::string_view module, std::string_view name) {
    if (module == "__builtin__") module = "builtins";
    auto full = fmt::format("{} {}", module, name);
    if (!std::ranges::binary_search(allowed_, std::string_view(full))) {
      throw_error(
          "the checkpoint names {}.{}, which a checkpoint may not hold (it may hold tensors, "
          "numbers, "
          "strings, containers); nothing was run. Save a state_dict instead, or convert the object in Python",
          module, name);
    }
    pickle_.names.push_back(std::move(full));
    push({.kind = Kind::global, .text = pickle_.names.back()});
  }
  void push_stack_global() {
    const Node& name = pickle_.nodes[pop()];
    const Node& module = pickle_.nodes[pop()];
    if (name.kind != Kind::text || module.kind != Kind::text) fail("a global's name is not a string");
    if (name.text.size() + module.text.size() > kLongestName) fail("a global's name is too long");
    push_global(module.text, name.text);
  }

  void push_call() {
    const Ref args = pop();
    const Ref callee = pop();
    if (pickle_[callee].kind != Kind::global) fail("an object that is not a function is called");
    if (pickle_[args].kind != Kind::tuple) fail("the arguments of a call are not a tuple");
    push({.kind = Kind::call, .callee = callee, .args = args});
  }

  void build() {
    const Ref state = pop();
    Node& object = pickle_.nodes[top()];
    if (object.kind != Kind::call) fail("a state is given to an object that takes none");
    object.state = state;
  }

  void append(std::vector<Ref> items, Kind kind) {
    Node& container = pickle_.nodes[top()];
    const bool fits = container.kind == kind || (kind == Kind::dict && container.kind == Kind::call);
    if (!fits) fail("items are added to an object that takes none");
    if (kind == Kind::dict && items.size() % 2 != 0) fail("a key has no value");
    container.items.insert(container.items.end(), items.begin(), items.end());
  }
  void append_one(Kind kind) {
    std::vector<Ref> items{pop()};
    if (kind == Kind::dict) items.insert(items.begin(), pop());
    append(std::move(items), kind);
  }

  void memoize(std::uint64_t key) {
    // Every entry took at least a byte of the pickle, so no honest index is beyond its length.
    if (key > bytes_.size()) fail("a memo index is out of range");
    if (key >= memo_.size()) memo_.resize(key + 1, kNoRef);
    memo_[key] = top();
    memo_count_ = std::max<std::uint64_t>(memo_count_, key + 1);
  }
  void recall(std::uint64_t key) {
    if (key >= memo_.size() || memo_[key] == kNoRef) fail("a memo entry is read before it was written");
    stack_.push_back(memo_[key]);
  }

  void stop() {
    pickle_.root = pop();
    if (!stack_.empty() || !marks_.empty()) fail("objects are left over");
    stopped_ = true;
  }

  void step(Opcode opcode);
  void step_container(Opcode opcode);
  void step_object(Opcode opcode);

  std::span<const char> bytes_;
  AllowedNames allowed_;
  std::size_t position_ = 0;
  bool stopped_ = false;
  Pickle pickle_;
  std::vector<Ref> stack_;
  std::vector<std::size_t> marks_;
  std::vector<Ref> memo_;
  std::uint64_t memo_count_ = 0;
};

void Reader::step(Opcode opcode) {
  switch (opcode) {
    case Opcode::none:
      return push({.kind = Kind::none});
    case Opcode::new_true:
      return push({.kind = Kind::boolean, .flag = true});
    case Opcode::new_false:
      return push({.kind = Kind::boolean});
    case Opcode::bin_int:
      return push_integer(take_number<std::int32_t>());
    case Opcode::bin_int1:
      return push_integer(take_byte());
    case Opcode::bin_int2:
      return push_integer(take_number<std::uint16_t>());
    case Opcode::long1:
      return push_long(take_byte());
    case Opcode::long4:
      return push_long(take_number<std::uint32_t>());
    case Opcode::bin_float:
      return push_real();
    case Opcode::short_bin_unicode:
      return push_text(Kind::text, take_byte());
    case Opcode::bin_unicode:
      return push_text(Kind::text, take_number<std::uint32_t>());
    case Opcode::bin_unicode8:
      return push_text(Kind::text, take_number<std::uint64_t>());
    // Python 2's str: text, as weights_only's encoding "utf-8" has it.
    case Opcode::short_bin_string:
      return push_text(Kind::text, take_byte());
    case Opcode::bin_string:
      return push_text(Kind::text, take_number<std::uint32_t>());
    case Opcode::short_bin_bytes:
      return push_text(Kind::bytes, take_byte());
    case Opcode::bin_bytes:
      return push_text(Kind::bytes, take_number<std::uint32_t>());
    case Opcode::bin_bytes8:
      return push_text(Kind::bytes, take_number<std::uint64_t>());
    case Opcode::byte_array8:
      return push_text(Kind::byte_array, take_number<std::uint64_t>());
    default:
      return step_container(opcode);
  }
}

void Reader::step_container(Opcode opcode) {
  switch (opcode) {
    case Opcode::empty_list:
      return push({.kind = Kind::list});
    case Opcode::empty_tuple:
      return push({.kind = Kind::tuple});
    case Opcode::empty_dict:
      return push({.kind = Kind::dict});
    case Opcode::empty_set:
      return push({.kind = Kind::set});
    case Opcode::mark:
      marks_.push_back(stack_.size());
      return;
    case Opcode::tuple:
      return push({.kind = Kind::tuple, .items = pop_to_mark()});
    case Opcode::tuple1:
      return push_tuple(1);
    case Opcode::tuple2:
      return push_tuple(2);
    case Opcode::tuple3:
      return push_tuple(3);
    case Opcode::append:
      return append_one(Kind::list);
    case Opcode::appends:
      return append(pop_to_mark(), Kind::list);
    case Opcode::set_item:
      return append_one(Kind::dict);
    case Opcode::set_items:
      return append(pop_to_mark(), Kind::dict);
    case Opcode::add_items:
      return append(pop_to_mark(), Kind::set);
    case Opcode::pop:
      pop();
      return;
    case Opcode::pop_mark:
      pop_to_mark();
      return;
    default:
      return step_object(opcode);
  }
}

void Reader::step_object(Opcode opcode) {
  switch (opcode) {
    case Opcode::proto: {
      const auto protocol = take_byte();
      if (protocol < 2 || protocol > 5) fail(fmt::format("it has protocol {}; 2 to 5 are known", protocol));
      return;
    }
    case Opcode::frame:
      take_number<std::uint64_t>();
      return;
    case Opcode::global: {
      const auto module = take_line();
      push_global(module, take_line());
      return;
    }
    case Opcode::stack_global:
      return push_stack_global();
    case Opcode::reduce:
    case Opcode::new_object:
      return push_call();
    case Opcode::build:
      return build();
    case Opcode::bin_persistent_id:
      return push({.kind = Kind::persistent, .args = pop()});
    case Opcode::bin_get:
      return recall(take_byte());
    case Opcode::long_bin_get:
      return recall(take_number<std::uint32_t>());
    case Opcode::bin_put:
      return memoize(take_byte());
    case Opcode::long_bin_put:
      return memoize(take_number<std::uint32_t>());
    case Opcode::memoize:
      return memoize(memo_count_);
    case Opcode::stop:
      return stop();
    default:
      fail(fmt::format("opcode 0x{:02x} does not occur in checkpoints", static_cast<unsigned>(opcode)));
  }
}

}  // namespace

Pickle read_pickle(std::span<const char> bytes, AllowedNames allowed) {
  return Reader(bytes, allowed).read();
}

}  // namespace lockstep::pickle
