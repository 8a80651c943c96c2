#include "lib/supervise/job_record.h"

#include <charconv>
#include <optional>

#include "io/base/format.h"
#include "io/base/schema.h"
#include "lib/supervise/command.h"
#include "lib/supervise/history.h"

namespace tri {
namespace {

constexpr int64_t kSchema = 1;
constexpr std::string_view kMark = "trireme-progress:";

std::optional<int64_t> whole(std::string_view text) {
  int64_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool good = problem == std::errc() && end == text.data() + text.size() && value >= 0;
  return good ? std::optional(value) : std::nullopt;
}

bool is_name(std::string_view text) {
  constexpr std::string_view kAllowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.,_-";
  return !text.empty() && text.find_first_not_of(kAllowed) == text.npos;
}

std::string value_of(std::string_view text, const std::string& name) {
  std::string value;
  for (const std::string& line : split_lines(std::string(text)))
    if (line.rfind(name + "=", 0) == 0) value = line.substr(name.size() + 1);
  return value;
}

}  // namespace

std::string to_text(const JobRecord& record) {
  return fmt::format(
      "# State of this Slurm job (lib/supervise/job_record.h).\n"
      "schema={}\nbest_step={}\njob={}\nexcluded={}\nprogress_restart={}\n",
      kSchema, record.best_step, record.job, record.excluded.empty() ? "none" : joined(record.excluded),
      record.progress_restart);
}

Result<void> check_record_schema(std::string_view source, std::string_view text) {
  return check_schema(source, whole(value_of(text, "schema")).value_or(kSchema), kSchema);
}

std::string job_of_record(std::string_view text) {
  const std::string job = value_of(text, "job");
  return whole(job) ? job : "";
}

JobRecord job_record_from(std::string_view text, const JobRecord& fresh, int restart) {
  if (job_of_record(text) != fresh.job) return fresh;
  JobRecord record = fresh;
  record.best_step = whole(value_of(text, "best_step")).value_or(fresh.best_step);
  const auto progress = whole(value_of(text, "progress_restart"));
  if (progress && *progress <= restart) record.progress_restart = static_cast<int>(*progress);
  std::string nodes = value_of(text, "excluded");
  if (nodes.empty()) nodes = value_of(text, "left_out");  // written by earlier versions
  if (is_name(nodes) && nodes != "none") record.excluded = split_names(nodes);
  return record;
}

int progress_in_comment(std::string_view comment, int restart) {
  const size_t at = comment.find(kMark);
  if (at == comment.npos) return 0;
  const std::string_view rest = comment.substr(at + kMark.size());
  const auto value = whole(rest.substr(0, rest.find_first_not_of("0123456789")));
  return value && *value <= restart ? static_cast<int>(*value) : 0;
}

std::string comment_with_progress(std::string_view comment, int restart) {
  std::string text(comment);
  if (text == "(null)") text.clear();
  if (const size_t at = text.find(kMark); at != text.npos) {
    const size_t end = text.find_first_not_of("0123456789", at + kMark.size());
    text.erase(at, end == text.npos ? end : end - at);
  }
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return fmt::format("{}{}{}{}", text, text.empty() ? "" : " ", kMark, restart);
}

}  // namespace tri
