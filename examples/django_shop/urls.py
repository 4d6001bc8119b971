from django.http import HttpRequest, JsonResponse
from django.urls import path

from examples.django_shop.tasks import confirm


async def order(request: HttpRequest, number: int, to: str) -> JsonResponse:
    return JsonResponse({"id": (await confirm.aenqueue(number, to=to)).id})


async def look(request: HttpRequest, result_id: str) -> JsonResponse:
    result = await confirm.aget_result(result_id)
    return JsonResponse({"status": result.status, "value": result.return_value if result.is_finished else None})


urlpatterns = [path("order/<int:number>/<str:to>", order), path("result/<str:result_id>", look)]
