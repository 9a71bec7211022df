// SPDX-License-Identifier: BSD-3-Clause
#include "serialize/pickle.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "base/throw_error.h"

namespace lockstep::pickle {
namespace {

// What one name of a module or class, and one memo, may be at most; far above anything real.
constexpr std::size_t kLongestName = 4096;

class Reader {
 public:
  Reader(std::span<const char> bytes, AllowsName allowed) : bytes_(bytes), allowed_(allowed) {}

  Pickle read() {
    while (!stopped_) step(take_byte());
    pickle_.size = position_;
    return std::move(pickle_);
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    throw_error<CheckpointError>("the pickle is damaged at byte {}: {}", position_, what);
  }

  [[noreturn]] void fail_cut_short() const {
    throw_error<CutShort>("the pickle is damaged at byte {}: it is cut short", position_);
  }

  // Bytes.
  std::string_view take(std::size_t count) {
    if (count > bytes_.size() - position_) fail_cut_short();
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
      fail_cut_short();
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
  Ref top() const {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) fail("an object is missing on the stack");
    return stack_.back();
  }
  Ref pop() {
    const Ref ref = top();
    stack_.pop_back();
    return ref;
  }
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
    if (!allowed_(module, name)) {
      throw_error<CheckpointError>(
          "the checkpoint names {}.{}, which a checkpoint may not hold (it may hold tensors, numbers, "
          "strings, containers); nothing was run. Save a state_dict instead, or convert the object in Python",
          module, name);
    }
    push({.kind = Kind::global, .text = pickle_.names.emplace_back(fmt::format("{} {}", module, name))});
  }
  void push_global() {
    const auto module = take_line();
    push_global(module, take_line());
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

  void check_protocol(std::uint8_t protocol) const {
    if (protocol < 2 || protocol > 5) fail(fmt::format("it has protocol {}; 2 to 5 are known", protocol));
  }

  void step(std::uint8_t code);

  std::span<const char> bytes_;
  AllowsName allowed_;
  std::size_t position_ = 0;
  bool stopped_ = false;
  Pickle pickle_;
  std::vector<Ref> stack_;
  std::vector<std::size_t> marks_;
  std::vector<Ref> memo_;
  std::uint64_t memo_count_ = 0;
};

void Reader::step(std::uint8_t code) {
  using Step = void (*)(Reader&);
  static constexpr auto kSteps = [] {
    std::array<Step, 256> steps{};
    const auto on = [&](Opcode opcode, Step action) { steps[static_cast<std::size_t>(opcode)] = action; };
    on(Opcode::none, [](Reader& r) { r.push({.kind = Kind::none}); });
    on(Opcode::new_true, [](Reader& r) { r.push({.kind = Kind::boolean, .flag = true}); });
    on(Opcode::new_false, [](Reader& r) { r.push({.kind = Kind::boolean}); });
    on(Opcode::bin_int, [](Reader& r) { r.push_integer(r.take_number<std::int32_t>()); });
    on(Opcode::bin_int1, [](Reader& r) { r.push_integer(r.take_byte()); });
    on(Opcode::bin_int2, [](Reader& r) { r.push_integer(r.take_number<std::uint16_t>()); });
    on(Opcode::long1, [](Reader& r) { r.push_long(r.take_byte()); });
    on(Opcode::long4, [](Reader& r) { r.push_long(r.take_number<std::uint32_t>()); });
    on(Opcode::bin_float, [](Reader& r) { r.push_real(); });
    on(Opcode::short_bin_unicode, [](Reader& r) { r.push_text(Kind::text, r.take_byte()); });
    on(Opcode::bin_unicode, [](Reader& r) { r.push_text(Kind::text, r.take_number<std::uint32_t>()); });
    on(Opcode::bin_unicode8, [](Reader& r) { r.push_text(Kind::text, r.take_number<std::uint64_t>()); });
    // Python 2's str: text, as weights_only's encoding "utf-8" has it.
    on(Opcode::short_bin_string, [](Reader& r) { r.push_text(Kind::text, r.take_byte()); });
    on(Opcode::bin_string, [](Reader& r) { r.push_text(Kind::text, r.take_number<std::uint32_t>()); });
    on(Opcode::short_bin_bytes, [](Reader& r) { r.push_text(Kind::bytes, r.take_byte()); });
    on(Opcode::bin_bytes, [](Reader& r) { r.push_text(Kind::bytes, r.take_number<std::uint32_t>()); });
    on(Opcode::bin_bytes8, [](Reader& r) { r.push_text(Kind::bytes, r.take_number<std::uint64_t>()); });
    on(Opcode::byte_array8, [](Reader& r) { r.push_text(Kind::byte_array, r.take_number<std::uint64_t>()); });
    on(Opcode::empty_list, [](Reader& r) { r.push({.kind = Kind::list}); });
    on(Opcode::empty_tuple, [](Reader& r) { r.push({.kind = Kind::tuple}); });
    on(Opcode::empty_dict, [](Reader& r) { r.push({.kind = Kind::dict}); });
    on(Opcode::empty_set, [](Reader& r) { r.push({.kind = Kind::set}); });
    on(Opcode::mark, [](Reader& r) { r.marks_.push_back(r.stack_.size()); });
    on(Opcode::tuple, [](Reader& r) { r.push({.kind = Kind::tuple, .items = r.pop_to_mark()}); });
    on(Opcode::tuple1, [](Reader& r) { r.push_tuple(1); });
    on(Opcode::tuple2, [](Reader& r) { r.push_tuple(2); });
    on(Opcode::tuple3, [](Reader& r) { r.push_tuple(3); });
    on(Opcode::append, [](Reader& r) { r.append_one(Kind::list); });
    on(Opcode::appends, [](Reader& r) { r.append(r.pop_to_mark(), Kind::list); });
    on(Opcode::set_item, [](Reader& r) { r.append_one(Kind::dict); });
    on(Opcode::set_items, [](Reader& r) { r.append(r.pop_to_mark(), Kind::dict); });
    on(Opcode::add_items, [](Reader& r) { r.append(r.pop_to_mark(), Kind::set); });
    on(Opcode::pop, [](Reader& r) { r.pop(); });
    on(Opcode::pop_mark, [](Reader& r) { r.pop_to_mark(); });
    on(Opcode::proto, [](Reader& r) { r.check_protocol(r.take_byte()); });
    on(Opcode::frame, [](Reader& r) { r.take_number<std::uint64_t>(); });
    on(Opcode::global, [](Reader& r) { r.push_global(); });
    on(Opcode::stack_global, [](Reader& r) { r.push_stack_global(); });
    on(Opcode::reduce, [](Reader& r) { r.push_call(); });
    on(Opcode::new_object, [](Reader& r) { r.push_call(); });
    on(Opcode::build, [](Reader& r) { r.build(); });
    on(Opcode::bin_persistent_id, [](Reader& r) { r.push({.kind = Kind::persistent, .args = r.pop()}); });
    on(Opcode::bin_get, [](Reader& r) { r.recall(r.take_byte()); });
    on(Opcode::long_bin_get, [](Reader& r) { r.recall(r.take_number<std::uint32_t>()); });
    on(Opcode::bin_put, [](Reader& r) { r.memoize(r.take_byte()); });
    on(Opcode::long_bin_put, [](Reader& r) { r.memoize(r.take_number<std::uint32_t>()); });
    on(Opcode::memoize, [](Reader& r) { r.memoize(r.memo_count_); });
    on(Opcode::stop, [](Reader& r) { r.stop(); });
    return steps;
  }();
  if (kSteps[code] == nullptr) fail(fmt::format("opcode 0x{:02x} does not occur in checkpoints", code));
  kSteps[code](*this);
}

}  // namespace

Pickle read_pickle(std::span<const char> bytes, AllowsName allowed) { return Reader(bytes, allowed).read(); }

bool is_utf8(std::string_view text) {
  // By the length of the form. A smaller number has a shorter form.
  constexpr std::array<std::uint32_t, 5> kLeast = {0, 0, 0x80, 0x800, 0x10000};
  constexpr std::uint32_t kLast = 0x10ffff;
  while (!text.empty()) {
    const auto first = static_cast<unsigned char>(text.front());
    const auto ones = static_cast<std::size_t>(std::countl_one(first));
    const auto length = std::max<std::size_t>(ones, 1);
    if (ones == 1 || ones >= kLeast.size() || text.size() < length) return false;
    std::uint32_t number = first & (0xffU >> (ones + 1));
    for (const char letter : text.substr(1, length - 1)) {
      const auto byte = static_cast<unsigned char>(letter);
      if ((byte & 0xc0) != 0x80) return false;
      number = (number << 6) | (byte & 0x3fU);
    }
    if (number < kLeast[length] || number > kLast) return false;
    text.remove_prefix(length);
  }
  return true;
}

template <typename Number>
void Writer::raw(Number number) {
  char bytes[sizeof(number)];
  std::memcpy(bytes, &number, sizeof(number));
  out_.append(bytes, sizeof(number));
}

Writer::Writer() {
  op(Opcode::proto);
  out_.push_back('\x02');
}

void Writer::integer(std::int64_t value) {
  if (value >= 0 && value <= 0xff) {
    op(Opcode::bin_int1);
    raw(static_cast<std::uint8_t>(value));
  } else if (value >= 0 && value <= 0xffff) {
    op(Opcode::bin_int2);
    raw(static_cast<std::uint16_t>(value));
  } else if (value >= std::numeric_limits<std::int32_t>::min() &&
             value <= std::numeric_limits<std::int32_t>::max()) {
    op(Opcode::bin_int);
    raw(static_cast<std::int32_t>(value));
  } else {
    op(Opcode::long1);
    out_.push_back('\x08');
    raw(value);
  }
}

void Writer::big_integer(std::string_view bytes) {
  // Python's weights_only loader knows the short form only.
  if (bytes.size() > 0xff) throw CheckpointError("an int of more than 255 bytes cannot be saved");
  op(Opcode::long1);
  raw(static_cast<std::uint8_t>(bytes.size()));
  out_.append(bytes);
}

void Writer::real(double value) {
  op(Opcode::bin_float);
  raw(__builtin_bswap64(std::bit_cast<std::uint64_t>(value)));
}

void Writer::text(std::string_view value) {
  if (value.size() > std::numeric_limits<std::uint32_t>::max())
    throw CheckpointError("a string of more than 4 GiB cannot be saved");
  op(Opcode::bin_unicode);
  raw(static_cast<std::uint32_t>(value.size()));
  out_.append(value);
}

void Writer::global(std::string_view module, std::string_view name) {
  std::string full(module);
  full.append("\n").append(name).append("\n");
  const auto known = globals_.find(full);
  if (known != globals_.end()) {
    recall(known->second);
    return;
  }
  op(Opcode::global);
  out_.append(full);
  globals_.emplace(std::move(full), memoize());
}

void Writer::op_with(Opcode short_form, Opcode long_form, std::uint32_t number) {
  if (number <= 0xff) {
    op(short_form);
    raw(static_cast<std::uint8_t>(number));
  } else {
    op(long_form);
    raw(number);
  }
}

std::uint32_t Writer::memoize() {
  op_with(Opcode::bin_put, Opcode::long_bin_put, memo_count_);
  return memo_count_++;
}

std::string Writer::finish() {
  op(Opcode::stop);
  return std::move(out_);
}

}  // namespace lockstep::pickle
