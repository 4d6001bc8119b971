from django_tasks import task  # with Django 6: from django.tasks import task


@task(queue_name="mail", priority=10)
def confirm(order: int, to: str) -> str:
    return f"order {order} is confirmed to {to}"
