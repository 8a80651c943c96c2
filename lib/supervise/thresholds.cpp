#include "lib/supervise/thresholds.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <vector>

#include "io/base/text_file.h"
#include "lib/config/nearest.h"
#include "lib/config/value.h"
#include "lib/config/yaml_reader.h"

namespace tri {
namespace {

struct Field {
  std::string_view name;
  double Thresholds::*value;
  double least = 0;
};
constexpr std::array kFields{
    Field{"silent_seconds", &Thresholds::silent_seconds, 3},  // agents report once a second
    Field{"stopped_seconds", &Thresholds::stopped_seconds},
    Field{"begin_seconds", &Thresholds::begin_seconds},
    Field{"gone_seconds", &Thresholds::gone_seconds},
    Field{"start_seconds", &Thresholds::start_seconds, 1},
    Field{"end_seconds", &Thresholds::end_seconds, 1},
    Field{"exclusion_hours", &Thresholds::exclusion_hours, 0.1},  // if shorter, the next attempt could use the node
                                                                  // again
    Field{"repeat_hours", &Thresholds::repeat_hours},
    Field{"flap_seconds", &Thresholds::flap_seconds},
    Field{"port_errors", &Thresholds::port_errors},
    Field{"attempts", &Thresholds::attempts, 1},
    Field{"doctor_seconds", &Thresholds::doctor_seconds},
    Field{"drain_seconds", &Thresholds::drain_seconds},
};

class ThresholdsReader : YamlReader {
 public:
  explicit ThresholdsReader(const std::string& source) : YamlReader(source) {}

  Result<Thresholds> read(std::string_view text) && {
    const YAML::Node root = document(text);
    if (root.IsMap())
      each_pair(root, "", [&](const YamlPair& pair) { read_pair(pair); });
    else if (!root.IsNull())
      add(at_line(root.Mark().line + 1), "expected lines such as \"silent_seconds: 30\"");
    if (has_errors()) return all_errors();
    return thresholds_;
  }

 private:
  void read_pair(const YamlPair& pair) {
    const auto field = std::find_if(kFields.begin(), kFields.end(), [&](const Field& f) { return f.name == pair.key; });
    if (field == kFields.end()) {
      std::vector<std::string> known;
      for (const Field& f : kFields) known.emplace_back(f.name);
      const std::string meant = nearest(pair.key, known);
      return add(at_line(pair.line),
                 pair.key + ": unknown threshold" + (meant.empty() ? "" : "; did you mean " + meant + "?"));
    }
    const Allowed allowed = at_least(field->least);
    const ValueRule rule{allowed, describe<double>(allowed), print_value(Thresholds{}.*(field->value))};
    std::vector<Problem> problems;
    read_value(pair.value, rule, thresholds_.*(field->value), problems);
    for (const Problem& problem : problems) add(at_line(pair.line), pair.key + ": " + problem.text);
  }

  Thresholds thresholds_;
};

}  // namespace

Result<Thresholds> thresholds_from(std::string_view text, const std::string& source) {
  return ThresholdsReader(source).read(text);
}

Result<Thresholds> read_thresholds(const std::string& run_dir) {
  const std::string path = run_dir + "/supervise.conf";
  const auto text = read_text(path);
  if (!text && text.error().os_error == ENOENT) return Thresholds{};
  if (!text) return text.error();
  return thresholds_from(text.value(), path);
}

}  // namespace tri
