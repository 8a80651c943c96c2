#include "io/tokens/token_origin.h"

#include <cerrno>

#include "io/base/file.h"
#include "io/base/json.h"
#include "io/base/schema.h"

namespace tri {

Result<TokenOrigin> prepared_with(const std::string& prefix) {
  const std::string path = prefix + ".json";
  auto file = MappedFile::open(path);
  if (!file && file.error().os_error == ENOENT) return TokenOrigin{};
  if (!file) return file.error();
  const auto sidecar = try_parse_json<nlohmann::json>(file.value().text());
  if (sidecar.is_object() && sidecar.contains("schema") && sidecar["schema"].is_number_integer())
    if (auto known = check_schema(path, sidecar["schema"], kOriginSchema); !known) return known.error();
  if (!sidecar.is_object() || !sidecar.contains("fingerprint") || !sidecar["fingerprint"].is_string())
    return file_error("{}: does not say which tokenizer made {}.bin; prepare it again, or remove this file", path,
                      prefix);
  TokenOrigin origin{.fingerprint = sidecar["fingerprint"]};
  if (const auto at = sidecar.find("tokenizer"); at != sidecar.end() && at->is_string()) origin.tokenizer = *at;
  if (const auto at = sidecar.find("trained_tokens"); at != sidecar.end() && at->is_number_integer())
    origin.trained_tokens = *at;
  if (const auto at = sidecar.find("vocab"); at != sidecar.end() && at->is_number_integer()) origin.vocab = *at;
  return origin;
}

}  // namespace tri
