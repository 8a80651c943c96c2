// The layout of a type's messages, as text: two builds compare it to find out whether they can read each other's
// messages.
#pragma once

#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "io/base/enum_names.h"
#include "lib/comm/host/messages.h"

namespace tri::messages {

template <class E>
concept HasValueNames = requires {
  EnumNames<E>::table;
};

// Collects the names of the types that a value is sent as, and those of an enum's values.
class Layout {
 public:
  template <class... Ts>
  void operator()(const Ts&... values) {
    (name(values), ...);
  }
  std::string take() && { return std::move(text_); }

 private:
  template <class T>
  void name(const T& value) {
    if constexpr (NamesItsFields<T>) {
      text_ += "{";
      fields(*this, const_cast<T&>(value));
      text_ += "}";
    } else if constexpr (std::is_enum_v<T>) {
      static_assert(HasValueNames<T>, "an enum without EnumNames: a new value would not change the layout");
      text_ += "e" + std::to_string(sizeof(T)) + "(" + enum_choices<T>() + "),";
    } else {
      const char kind = std::is_floating_point_v<T>                    ? 'f'
                        : std::is_same_v<T, bool>                      ? 'b'
                        : std::is_integral_v<T> && std::is_signed_v<T> ? 'i'
                        : std::is_integral_v<T>                        ? 'u'
                                                                       : 's';
      text_ += kind + std::to_string(sizeof(T)) + ",";
    }
  }
  void name(const std::string&) { text_ += "t,"; }
  template <class T>
  void name(const std::vector<T>&) {
    text_ += "v";
    name(blank<T>());
  }
  template <class T>
  void name(const std::optional<T>&) {
    text_ += "o";
    name(blank<T>());
  }

  std::string text_;
};

// Returns the fields of a T in order: "{t,i8,v{i4,b1,}e4(first|second),}". Two builds with equal texts can read each
// other's T.
template <class T>
std::string layout_of() {
  Layout layout;
  layout(blank<T>());
  return std::move(layout).take();
}

}  // namespace tri::messages
